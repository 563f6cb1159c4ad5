// Command soak is both ends of a long load: engines that count what they are asked, and clients that count what they
// get. It holds the two counts against each other, request by request. Each second it writes a line of JSON with
// `done`; when all requests have ended and the engines are idle again, a line with everything. It reads lines
// "killed PORT" from its input: the sidecar of that engine has just been killed.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Longest wait for engines to notice that their clients have gone, after the last request.
const settleSeconds = 10

func main() {
	gateway := flag.String("gateway", "", "host:port to send to")
	ports := flag.String("engines", "", "ports of the engines, comma between them")
	requests := flag.Int("requests", 20_000, "requests in all")
	clients := flag.Int("clients", 48, "connections")
	disconnects := flag.Float64("disconnects", 0.05, "share of requests whose client leaves")
	resets := flag.Float64("resets", 0.01, "share of attempts that an engine resets")
	seed := flag.Int64("seed", 1, "of what the requests are")
	flag.Parse()

	book := newJournal(*requests)
	var engines []*engine
	numbers := map[string]int{}
	for number, port := range strings.Split(*ports, ",") {
		listener, err := net.Listen("tcp", "127.0.0.1:"+port)
		if err != nil {
			fmt.Fprintln(os.Stderr, "soak:", err)
			os.Exit(2)
		}
		e := &engine{journal: book, number: number, resets: *resets, seed: *seed, disconnects: *disconnects}
		engines, numbers[port] = append(engines, e), number
		go e.serve(listener)
	}
	say(map[string]any{"ready": true})
	input := bufio.NewScanner(os.Stdin)
	if !input.Scan() { // the first line says that the routers are ready
		return
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for input.Scan() {
			if number, ok := numbers[strings.TrimPrefix(input.Text(), "killed ")]; ok {
				book.killed(number)
			}
		}
	}()
	book.start = time.Now()
	send(book, *gateway, *clients, func(id int) plan { return planOf(id, *seed, *disconnects) })
	running := settle(engines)
	report := book.report()
	report["still_running"] = running
	say(report)
	<-ended // the pods may still be looked at, and want their engines
}

func say(line map[string]any) {
	json.NewEncoder(os.Stdout).Encode(line)
}

func send(book *journal, gateway string, clients int, planned func(int) plan) {
	var next atomic.Int64
	var under sync.WaitGroup
	for range clients {
		under.Add(1)
		go func() {
			defer under.Done()
			c := &client{address: gateway}
			defer c.close()
			for id := int(next.Add(1)) - 1; id < len(book.records); id = int(next.Add(1)) - 1 {
				ended, status := c.ask(planned(id))
				book.note(id, func(r *record) { r.outcome, r.status = ended, uint16(status) })
			}
		}()
	}
	finished := make(chan struct{})
	go func() { under.Wait(); close(finished) }()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-finished:
			return
		case <-tick.C:
			say(map[string]any{"done": min(int(next.Load()), len(book.records))})
		}
	}
}

// settle waits until no engine works any more; how many requests still run when patience is over.
func settle(engines []*engine) int64 {
	for wait := 0; ; wait++ {
		var running int64
		for _, e := range engines {
			running += e.running.Load()
		}
		if running == 0 || wait == settleSeconds*20 {
			return running
		}
		time.Sleep(50 * time.Millisecond)
	}
}
