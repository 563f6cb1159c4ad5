package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// Four bytes of text are one token: the load writes words of three letters and a blank.
const bytesOfToken = 4

type question struct {
	Model     string                     `json:"model"`
	Prompt    string                     `json:"prompt"`
	Messages  []struct{ Content string } `json:"messages"`
	Stream    bool                       `json:"stream"`
	MaxTokens int                        `json:"max_tokens"`
	MaxNew    int                        `json:"max_completion_tokens"`
	Options   struct {
		Usage bool `json:"include_usage"`
	} `json:"stream_options"`
}

func (q *question) text() string {
	var all strings.Builder
	all.WriteString(q.Prompt)
	for _, message := range q.Messages {
		all.WriteString(message.Content)
	}
	return all.String()
}

// shape is what differs between the two APIs.
type shape struct {
	object, chunkObject string
	whole, delta        string // formats of a choice's text
}

var (
	chatShape = shape{"chat.completion", "chat.completion.chunk",
		`"message":{"role":"assistant","content":"%s"}`, `"delta":{"content":"%s"}`}
	textShape = shape{"text_completion", "text_completion", `"text":"%s"`, `"text":"%s"`}
)

type server struct {
	engine *scheduler
	model  string
	name   string // told in the header x-engine
}

func (s *server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, r *http.Request) { s.generate(w, r, chatShape) })
	mux.HandleFunc("POST /v1/completions", func(w http.ResponseWriter, r *http.Request) { s.generate(w, r, textShape) })
	mux.HandleFunc("POST /v1/chat/completions/render", func(w http.ResponseWriter, r *http.Request) { s.render(w, r, "%s") })
	mux.HandleFunc("POST /v1/completions/render", func(w http.ResponseWriter, r *http.Request) { s.render(w, r, "[%s]") })
	mux.HandleFunc("GET /metrics", s.metrics)
	mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	room := s.engine.blocks.total * s.engine.blocks.size
	for path, body := range map[string]string{
		"GET /version":         `{"version":"0.32.0"}`,
		"GET /get_model_info":  fmt.Sprintf(`{"model_path":%q}`, s.model),
		"GET /get_server_info": fmt.Sprintf(`{"model_path":%q}`, s.model),
		"GET /v1/models": fmt.Sprintf(
			`{"object":"list","data":[{"id":%q,"object":"model","owned_by":"vllm","max_model_len":%d}]}`, s.model, room),
	} {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("content-type", "application/json")
			io.WriteString(w, body)
		})
	}
	return mux
}

func refuse(w http.ResponseWriter, status int, message string) {
	w.Header().Set("content-type", "application/json")
	w.WriteHeader(status)
	fmt.Fprintf(w, `{"error":{"message":%q,"code":%d}}`, message, status)
}

func read(w http.ResponseWriter, r *http.Request) (*question, bool) {
	q := &question{}
	if err := json.NewDecoder(r.Body).Decode(q); err != nil {
		refuse(w, 400, "the body is no JSON: "+err.Error())
		return nil, false
	}
	return q, true
}

// keys names each full block of a prompt by all text up to its end (FNV-1a).
func keys(text string, blockTokens int) []uint64 {
	var chain []uint64
	hash := uint64(14695981039346656037)
	for i := 0; i < len(text); i++ {
		hash = (hash ^ uint64(text[i])) * 1099511628211
		if (i+1)%(blockTokens*bytesOfToken) == 0 {
			chain = append(chain, hash|1) // 0 stands for no key
		}
	}
	return chain
}

func (s *server) generate(w http.ResponseWriter, r *http.Request, form shape) {
	q, ok := read(w, r)
	if !ok {
		return
	}
	if q.Model != s.model {
		refuse(w, 404, "this engine serves "+s.model)
		return
	}
	text, most := q.text(), max(q.MaxTokens, q.MaxNew)
	if most == 0 {
		most = 16
	}
	prompt := max(1, (len(text)+bytesOfToken-1)/bytesOfToken)
	if prompt+most > s.engine.blocks.total*s.engine.blocks.size {
		refuse(w, 400, "the request is longer than the KV cache")
		return
	}
	asked := &sequence{prompt: prompt, most: most, keys: keys(text, s.engine.blocks.size), produced: make(chan int, most+1)}
	w.Header().Set("x-engine", s.name)
	s.engine.submit(asked)
	if q.Stream {
		s.stream(w, r, form, asked, q.Options.Usage)
	} else {
		s.answer(w, r, form, asked)
	}
}

func (s *server) usage(asked *sequence, output int) string {
	return fmt.Sprintf(`"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d}}`,
		asked.prompt, output, asked.prompt+output, asked.cached)
}

func (s *server) answer(w http.ResponseWriter, r *http.Request, form shape, asked *sequence) {
	output := 0
	for {
		select {
		case got, more := <-asked.produced:
			if more {
				output = got
				continue
			}
		case <-r.Context().Done():
			s.engine.abandon(asked)
			return
		}
		break
	}
	w.Header().Set("content-type", "application/json")
	fmt.Fprintf(w, `{"id":"sim","object":%q,"created":1,"model":%q,"choices":[{"index":0,`+form.whole+`,"finish_reason":"length"}],%s}`,
		form.object, s.model, strings.Repeat("w ", output), s.usage(asked, output))
}

func (s *server) stream(w http.ResponseWriter, r *http.Request, form shape, asked *sequence, wantsUsage bool) {
	w.Header().Set("content-type", "text/event-stream; charset=utf-8")
	w.WriteHeader(200)
	flush := w.(http.Flusher).Flush
	flush()
	head := fmt.Sprintf(`data: {"id":"sim","object":%q,"created":1,"model":%q,"choices":[`, form.chunkObject, s.model)
	choice := head + `{"index":0,` + form.delta + `,"finish_reason":%s}]}` + "\n\n"
	token, last := fmt.Sprintf(choice, "w ", "null"), fmt.Sprintf(choice, "", `"length"`)
	sent := 0
	for {
		select {
		case output, more := <-asked.produced:
			if !more {
				io.WriteString(w, last)
				if wantsUsage {
					io.WriteString(w, head+"],"+s.usage(asked, sent)+"}\n\n")
				}
				io.WriteString(w, "data: [DONE]\n\n")
				return
			}
			for ; sent < output; sent++ {
				io.WriteString(w, token)
			}
			flush()
		case <-r.Context().Done():
			s.engine.abandon(asked)
			return
		}
	}
}

// render gives token ids of a prompt, as vLLM does; vllm-router's cache_aware asks for them before each pick.
func (s *server) render(w http.ResponseWriter, r *http.Request, form string) {
	q, ok := read(w, r)
	if !ok {
		return
	}
	text := q.text()
	ids := make([]uint64, 0, len(text)/bytesOfToken+1)
	for i := 0; i < len(text); i += bytesOfToken {
		ids = append(ids, keys(text[i:min(i+bytesOfToken, len(text))]+"   ", 1)[0]%128_000)
	}
	body, _ := json.Marshal(map[string]any{"request_id": "sim", "token_ids": ids})
	w.Header().Set("content-type", "application/json")
	fmt.Fprintf(w, form, body)
}

func (s *server) metrics(w http.ResponseWriter, _ *http.Request) {
	e := s.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	w.Header().Set("content-type", "text/plain; version=0.0.4")
	labels := fmt.Sprintf(`engine="0",model_name=%q`, s.model)
	line := func(kind, name, more string, value any) {
		fmt.Fprintf(w, "# TYPE vllm:%s %s\nvllm:%s{%s%s} %v\n", name, kind, name, labels, more, value)
	}
	line("gauge", "num_requests_running", "", len(e.running))
	line("gauge", "num_requests_waiting", "", len(e.waiting))
	line("gauge", "kv_cache_usage_perc", "", e.blocks.usage())
	line("counter", "num_preemptions_total", "", e.totals.preempted)
	line("counter", "prefix_cache_queries_total", "", e.totals.queried)
	line("counter", "prefix_cache_hits_total", "", e.totals.hit)
	line("counter", "prompt_tokens_total", "", e.totals.prompt)
	line("counter", "generation_tokens_total", "", e.totals.output)
	line("counter", "request_success_total", `,finished_reason="length"`, e.totals.finished)
	config := fmt.Sprintf(`,block_size="%d",num_gpu_blocks="%d",enable_prefix_caching="True"`, e.blocks.size, e.blocks.total)
	line("gauge", "cache_config_info", config, 1)
}
