// Command replay sends a trace in open loop: each request when it is due, whatever the answers do. It writes a line of
// JSON: how many were sent, were whole, went wrong and why, and quantiles in seconds of the time to the first token,
// the time per further token and the time to the end, of requests that were due after the warm-up.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"sort"
	"sync"
	"time"
)

type outcome struct {
	due, late          float64
	first, last, whole float64 // seconds from the moment it was due
	tokens             int
	wrong              string
}

var errCut = errors.New("cut")

// follow reads a stream of events; a token is an event whose choice has text.
func follow(body io.Reader, begin time.Time, o *outcome) error {
	lines := bufio.NewReaderSize(body, 16384)
	for {
		line, err := lines.ReadBytes('\n')
		if bytes.HasPrefix(line, []byte("data: [DONE]")) {
			_, err := io.Copy(io.Discard, lines)
			return err
		}
		if bytes.Contains(line, []byte(`"error"`)) {
			return errors.New("error event")
		}
		if bytes.Contains(line, []byte(`"content":"w `)) {
			o.last = time.Since(begin).Seconds()
			if o.tokens++; o.tokens == 1 {
				o.first = o.last
			}
		}
		if err != nil {
			return errCut
		}
	}
}

// asker sends requests until its context ends.
type asker struct {
	context.Context
	client     *http.Client
	url, model string
}

func (k *asker) ask(a arrival, begin time.Time, o *outcome) {
	k.send(a, begin, o)
	if o.wrong != "" && k.Err() != nil {
		o.wrong = "unfinished"
	}
}

func (k *asker) send(a arrival, begin time.Time, o *outcome) {
	request := map[string]any{
		"model": k.model, "max_tokens": a.output, "stream": true, "ignore_eos": true, "temperature": 0,
		"messages": []map[string]string{{"role": "user", "content": a.prompt}},
	}
	body, _ := json.Marshal(request)
	post, err := http.NewRequestWithContext(k, "POST", k.url+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		o.wrong = err.Error()
		return
	}
	post.Header.Set("content-type", "application/json")
	answer, err := k.client.Do(post)
	if err != nil {
		o.wrong = "no answer"
		return
	}
	defer answer.Body.Close()
	if answer.StatusCode != 200 {
		io.Copy(io.Discard, answer.Body)
		o.wrong = fmt.Sprintf("status %d", answer.StatusCode)
		return
	}
	if err := follow(answer.Body, begin, o); err != nil {
		o.wrong = err.Error()
		return
	}
	if o.whole = time.Since(begin).Seconds(); o.tokens != a.output {
		o.wrong = "short"
	}
}

func quantiles(values []float64) map[string]float64 {
	found := map[string]float64{}
	sort.Float64s(values)
	for name, share := range map[string]float64{"p50": 0.5, "p90": 0.9, "p99": 0.99} {
		if len(values) > 0 {
			found[name] = values[min(len(values)-1, int(share*float64(len(values))))]
		}
	}
	return found
}

func report(all []outcome, warmup, seconds float64) map[string]any {
	var first, each, whole, late []float64
	wrong := map[string]int{}
	sent, inTime := 0, 0
	for _, o := range all {
		if o.due < warmup {
			continue
		}
		sent++
		late = append(late, o.late)
		if o.wrong != "" {
			wrong[o.wrong]++
			continue
		}
		first, whole = append(first, o.first), append(whole, o.whole)
		if o.tokens > 1 {
			each = append(each, (o.last-o.first)/float64(o.tokens-1))
		}
		if o.due+o.whole <= seconds {
			inTime++
		}
	}
	return map[string]any{
		"sent": sent, "right": len(whole), "wrong": wrong, "seconds": seconds - warmup,
		"done_in_time": inTime, "ttft": quantiles(first), "tpot": quantiles(each), "e2e": quantiles(whole),
		"late": quantiles(late),
	}
}

func main() {
	url := flag.String("url", "", "where to send")
	model := flag.String("model", "sim", "model to ask for")
	trace := flag.String("trace", "", "file in Mooncake's form")
	offset := flag.Float64("offset", 0, "where to begin, seconds of the trace")
	speedup := flag.Float64("speedup", 1, "how much faster than the trace")
	coarse := flag.Int("coarse", 1, "divisor of lengths")
	seconds := flag.Float64("seconds", 60, "wall seconds in which requests are due")
	warmup := flag.Float64("warmup", 10, "of these, seconds whose requests do not count")
	drain := flag.Float64("drain", 20, "longest wait for the last answers, seconds")
	seed := flag.Int64("seed", 1, "of the spread within a tick of the trace")
	flag.Parse()
	planned, err := arrivals(*trace, *offset, *speedup, *seconds, *coarse, *seed)
	if err != nil {
		fmt.Fprintln(os.Stderr, "replay:", err)
		os.Exit(2)
	}
	longest := time.Duration((*seconds + *drain) * float64(time.Second))
	ctx, cancel := context.WithTimeout(context.Background(), longest)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 4096, DisableCompression: true}}
	asking := &asker{ctx, client, *url, *model}
	all := make([]outcome, len(planned))
	var under sync.WaitGroup
	start := time.Now()
	for i, a := range planned {
		due := start.Add(time.Duration(a.at * float64(time.Second)))
		time.Sleep(time.Until(due))
		all[i].due, all[i].late = a.at, time.Since(due).Seconds()
		under.Add(1)
		go func() {
			defer under.Done()
			asking.ask(a, due, &all[i])
		}()
	}
	under.Wait()
	json.NewEncoder(os.Stdout).Encode(report(all, *warmup, *seconds))
}
