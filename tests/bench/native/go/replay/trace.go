package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math/rand"
	"os"
	"sort"
	"strings"
)

// Each id of the trace stands for a block of so many tokens.
const traceBlock = 512

// Mooncake's clock ticks once in three seconds; a tick's requests are spread over it.
const tickSeconds = 3.0

type arrival struct {
	at     float64 // wall seconds from the start
	prompt string
	output int // tokens
}

type row struct {
	Timestamp float64  `json:"timestamp"` // ms
	Input     int      `json:"input_length"`
	Output    int      `json:"output_length"`
	Ids       []uint64 `json:"hash_ids"`
}

// text writes a token as three characters and a blank, the same ones for the same id.
func text(id uint64, tokens int) string {
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789"
	draw := rand.New(rand.NewSource(int64(id) + 1))
	var all strings.Builder
	for range tokens {
		for range 3 {
			all.WriteByte(letters[draw.Intn(len(letters))])
		}
		all.WriteByte(' ')
	}
	return all.String()
}

// arrivals reads a trace in Mooncake's form. `speedup` divides its times, `coarse` its lengths.
func arrivals(file string, offset, speedup, seconds float64, coarse int, seed int64) ([]arrival, error) {
	opened, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer opened.Close()
	draw := rand.New(rand.NewSource(seed))
	blocks := map[uint64]string{}
	size := max(1, traceBlock/coarse)
	var found []arrival
	lines := bufio.NewScanner(opened)
	lines.Buffer(nil, 1<<22)
	for number := 1; lines.Scan(); number++ {
		var r row
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", file, number, err)
		}
		at := (r.Timestamp/1000 + draw.Float64()*tickSeconds - offset) / speedup
		if at < 0 || at >= seconds {
			continue
		}
		var prompt strings.Builder
		left := max(1, r.Input/coarse)
		for _, id := range r.Ids {
			if blocks[id] == "" {
				blocks[id] = text(id, size)
			}
			tokens := min(left, size)
			prompt.WriteString(blocks[id][:4*tokens])
			left -= tokens
		}
		found = append(found, arrival{at, prompt.String(), max(1, r.Output/coarse)})
	}
	sort.Slice(found, func(i, j int) bool { return found[i].at < found[j].at })
	return found, lines.Err()
}
