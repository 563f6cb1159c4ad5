package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

// engine answers as planned, and resets a share of the connections: half of them before the answer, half within.
type engine struct {
	journal     *journal
	number      int
	resets      float64
	seed        int64
	running     atomic.Int64
	tokens      atomic.Int64
	finished    atomic.Int64
	disconnects float64
}

type question struct {
	Messages []struct{ Content string } `json:"messages"`
	Options  struct {
		Usage bool `json:"include_usage"`
	} `json:"stream_options"`
}

func (e *engine) serve(listener net.Listener) {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/chat/completions", e.generate)
	mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, `{"version":"0.32.0"}`) })
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("content-type", "application/json")
		fmt.Fprintf(w, `{"object":"list","data":[{"id":%q,"object":"model","owned_by":"vllm","max_model_len":65536}]}`, model)
	})
	mux.HandleFunc("GET /metrics", e.metrics)
	http.Serve(listener, mux)
}

func (e *engine) metrics(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("content-type", "text/plain; version=0.0.4")
	labels := fmt.Sprintf(`engine="0",model_name=%q`, model)
	for _, series := range []struct {
		kind, name string
		value      int64
	}{
		{"gauge", "num_requests_running", e.running.Load()}, {"gauge", "num_requests_waiting", 0},
		{"gauge", "kv_cache_usage_perc", 0}, {"counter", "generation_tokens_total", e.tokens.Load()},
		{"counter", "prompt_tokens_total", 10 * e.finished.Load()},
	} {
		fmt.Fprintf(w, "# TYPE vllm:%s %s\nvllm:%s{%s} %d\n", series.name, series.kind, series.name, labels, series.value)
	}
	fmt.Fprintf(w, "# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{%s,block_size=\"16\",num_gpu_blocks=\"65536\"} 1\n", labels)
}

func (e *engine) generate(w http.ResponseWriter, r *http.Request) {
	var q question
	var id int
	body, err := io.ReadAll(r.Body)
	if err == nil {
		err = json.Unmarshal(body, &q)
	}
	if err == nil && len(q.Messages) == 1 {
		_, err = fmt.Sscanf(q.Messages[0].Content, "%d", &id)
	}
	if err != nil || id < 0 || id >= len(e.journal.records) || len(q.Messages) != 1 {
		w.WriteHeader(400) // nothing was mangled on its way, or this is seen as an answer that is wrong
		return
	}
	e.running.Add(1)
	defer e.running.Add(-1)
	e.journal.note(id, func(r *record) { r.attempts++ })
	p := planOf(id, e.seed, e.disconnects)
	reset := rand.Float64() < e.resets
	if reset && rand.Intn(2) == 0 {
		e.journal.note(id, func(r *record) { r.early++ })
		abort(w)
		return
	}
	switch {
	case !e.write(w, r, p, reset, q.Options.Usage):
		e.journal.note(id, func(r *record) { r.aborted++ })
	case reset:
		e.journal.note(id, func(r *record) { r.late++ })
		abort(w)
	default:
		e.finished.Add(1)
		e.journal.note(id, func(r *record) {
			if r.completed == 0 {
				r.completedAt, r.engine = e.journal.now(), uint8(e.number)
			}
			r.completed++
		})
	}
}

// write sends the answer, or a part of it when it will be reset; false when the client has gone.
func (e *engine) write(w http.ResponseWriter, r *http.Request, p plan, half, usage bool) bool {
	flush := w.(http.Flusher).Flush
	if !p.stream {
		pause(rand.Intn(3))
		answer := p.answer()
		w.Header().Set("content-type", "application/json")
		w.Header().Set("content-length", fmt.Sprint(len(answer)))
		if half {
			answer = answer[:len(answer)/2]
		}
		if r.Context().Err() != nil {
			return false
		}
		_, err := io.WriteString(w, answer)
		flush()
		e.tokens.Add(int64(p.tokens))
		return err == nil
	}
	w.Header().Set("content-type", "text/event-stream; charset=utf-8")
	tokens := p.tokens
	if half {
		tokens /= 2
	}
	gap := rand.Intn(3)
	for number := range tokens {
		pause(gap)
		if r.Context().Err() != nil {
			return false
		}
		if _, err := io.WriteString(w, p.event(number)); err != nil {
			return false
		}
		flush()
		e.tokens.Add(1)
	}
	if half {
		flush()
		return true
	}
	if usage {
		fmt.Fprintf(w, "data: {\"id\":\"soak-%d\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":%q,\"choices\":[],\"usage\":%s}\n\n",
			p.id, model, p.usage())
	}
	_, err := io.WriteString(w, streamEnd)
	flush()
	return err == nil
}

func pause(milliseconds int) {
	if milliseconds > 0 {
		time.Sleep(time.Duration(milliseconds) * time.Millisecond)
	}
}

// abort ends the connection as a process that dies does.
func abort(w http.ResponseWriter) {
	if conn, _, err := w.(http.Hijacker).Hijack(); err == nil {
		conn.(*net.TCPConn).SetLinger(0)
		conn.Close()
	}
}
