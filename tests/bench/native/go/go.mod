module tidepool.dev/bench

go 1.22
