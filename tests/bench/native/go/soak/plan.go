package main

import (
	"fmt"
	"math/rand"
	"strings"
)

const model = "sim"

// plan is what a request is, by its number alone: client and engine know it without telling each other.
type plan struct {
	id      int
	stream  bool
	tokens  int
	padding int // bytes that the body has more
	leaves  bool
	after   int // of an answer that the client leaves: so many bytes are read first
}

func planOf(id int, seed int64, disconnects float64) plan {
	draw := rand.New(rand.NewSource(seed<<32 ^ int64(id)))
	p := plan{id: id, stream: draw.Float64() < 0.6, tokens: 1 + draw.Intn(24), leaves: draw.Float64() < disconnects}
	switch size := draw.Float64(); {
	case size < 0.01:
		p.padding = 200_000
	case size < 0.3:
		p.padding = draw.Intn(8192)
	}
	if p.leaves && draw.Float64() < 0.6 {
		p.after = 1 + draw.Intn(2000)
	}
	return p
}

func (p plan) request(host string) string {
	body := fmt.Sprintf(`{"model":%q,"max_tokens":%d,"stream":%t,"messages":[{"role":"user","content":"%d %s"}]}`,
		model, p.tokens, p.stream, p.id, strings.Repeat("x", p.padding))
	return fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\n"+
		"X-Request-Id: soak-%d\r\nContent-Length: %d\r\n\r\n%s", host, p.id, len(body), body)
}

// Every token says whose it is and where it belongs, so that no answer can pass for another one.

func (p plan) token(number int) string { return fmt.Sprintf("%d.%d ", p.id, number) }

func (p plan) event(number int) string {
	finish := "null"
	if number == p.tokens-1 {
		finish = `"length"`
	}
	return fmt.Sprintf("data: {\"id\":\"soak-%d\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":%q,"+
		"\"choices\":[{\"index\":0,\"delta\":{\"content\":%q},\"finish_reason\":%s}]}\n\n", p.id, model, p.token(number), finish)
}

const streamEnd = "data: [DONE]\n\n"

// answer is the body that a client of this request must get.
func (p plan) answer() string {
	var all strings.Builder
	if p.stream {
		for number := range p.tokens {
			all.WriteString(p.event(number))
		}
		all.WriteString(streamEnd)
		return all.String()
	}
	for number := range p.tokens {
		all.WriteString(p.token(number))
	}
	return fmt.Sprintf(`{"id":"soak-%d","object":"chat.completion","created":1,"model":%q,"choices":[{"index":0,`+
		`"message":{"role":"assistant","content":%q},"finish_reason":"length"}],"usage":%s}`,
		p.id, model, all.String(), p.usage())
}

func (p plan) usage() string {
	return fmt.Sprintf(`{"prompt_tokens":10,"completion_tokens":%d,"total_tokens":%d}`, p.tokens, 10+p.tokens)
}
