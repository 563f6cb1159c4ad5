package main

import (
	"sync"
	"time"
)

// costs tell how long a step takes: base, plus something for each decoding sequence and each prompt token.
type costs struct {
	base, decode, prefill time.Duration
	scale                 float64
}

func (c costs) step(decodes, prefillTokens int) time.Duration {
	d := c.base + time.Duration(decodes)*c.decode + time.Duration(prefillTokens)*c.prefill
	return time.Duration(float64(d) * c.scale)
}

// sequence is one request inside the engine. As in vLLM's V1 scheduler there is no prefill or decode phase: a step
// computes some of the tokens that are not computed yet, and when none is left the next token is sampled.
type sequence struct {
	prompt, most int // tokens
	keys         []uint64
	output       int
	computed     int
	cached       int // of the prompt, found at its first admission
	admitted     bool
	left         bool // its client has gone
	blocks       []*block
	produced     chan int // output tokens so far, closed in the end
}

func (s *sequence) pending() int { return s.prompt + s.output - s.computed }

type totals struct {
	queried, hit, prompt, output, finished, preempted int
}

// scheduler is one engine: continuous batching with chunked prefill, first come first served.
type scheduler struct {
	mu               sync.Mutex
	wake             chan struct{}
	waiting, running []*sequence
	blocks           *blockPool
	stepTokens, most int // tokens of a step, running sequences
	costs            costs
	totals           totals
}

// part is what a step computes of one sequence.
type part struct {
	of     *sequence
	tokens int
}

func (e *scheduler) submit(s *sequence) {
	e.mu.Lock()
	e.waiting = append(e.waiting, s)
	e.mu.Unlock()
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

func (e *scheduler) abandon(s *sequence) {
	e.mu.Lock()
	s.left = true
	e.mu.Unlock()
}

// run steps for ever. A step ends when the clock says so and not when the sleep happened to end, so that a busy
// machine delays single tokens but does not make the engine slower, up to a fifth of a second.
func (e *scheduler) run() {
	var ends time.Time
	for {
		e.mu.Lock()
		e.dropLeft()
		if len(e.waiting) == 0 && len(e.running) == 0 {
			e.mu.Unlock()
			<-e.wake
			ends = time.Now()
			continue
		}
		parts, decodes, prefill := e.plan()
		e.mu.Unlock()
		ends = ends.Add(e.costs.step(decodes, prefill))
		if late := time.Since(ends); late > 200*time.Millisecond {
			ends = time.Now()
		}
		time.Sleep(time.Until(ends))
		e.mu.Lock()
		e.finish(parts)
		e.mu.Unlock()
	}
}

func (e *scheduler) dropLeft() {
	e.running = e.without(e.running)
	e.waiting = e.without(e.waiting)
}

func (e *scheduler) without(sequences []*sequence) []*sequence {
	kept := sequences[:0]
	for _, s := range sequences {
		if s.left {
			e.end(s)
		} else {
			kept = append(kept, s)
		}
	}
	return kept
}

func (e *scheduler) end(s *sequence) {
	e.blocks.release(s.blocks)
	s.blocks = nil
	close(s.produced)
}

// plan decides what the next step computes: first of what runs, in order, then of what waits.
func (e *scheduler) plan() (parts []part, decodes, prefill int) {
	budget := e.stepTokens
	schedule := func(s *sequence, tokens int) {
		parts = append(parts, part{s, tokens})
		budget -= tokens
		if s.pending() == 1 && s.output > 0 {
			decodes++
		} else {
			prefill += tokens
		}
	}
	preempted := false
	for i := 0; i < len(e.running) && budget > 0; i++ {
		s := e.running[i]
		tokens := min(s.pending(), budget)
		for !e.grow(s, tokens) {
			preempted = true
			if e.preemptLast() == s {
				tokens = 0
				break
			}
		}
		if tokens > 0 {
			schedule(s, tokens)
		}
	}
	for !preempted && len(e.waiting) > 0 && len(e.running) < e.most && budget > 0 {
		s := e.waiting[0]
		tokens, ok := e.admit(s, budget)
		if !ok {
			break
		}
		e.waiting = e.waiting[1:]
		e.running = append(e.running, s)
		schedule(s, tokens)
	}
	return parts, decodes, prefill
}

// grow gives a sequence the blocks that so many more computed tokens take.
func (e *scheduler) grow(s *sequence, tokens int) bool {
	missing := e.blocks.blocksFor(s.computed+tokens) - len(s.blocks)
	if missing > e.blocks.unused.Len() {
		return false
	}
	for range missing {
		s.blocks = append(s.blocks, e.blocks.fresh())
	}
	return true
}

// preemptLast sends the youngest running sequence back to the front of the queue: all of it is computed again.
func (e *scheduler) preemptLast() *sequence {
	last := e.running[len(e.running)-1]
	e.running = e.running[:len(e.running)-1]
	e.blocks.release(last.blocks)
	last.blocks, last.computed = nil, 0
	e.waiting = append([]*sequence{last}, e.waiting...)
	e.totals.preempted++
	return last
}

// admit finds what is cached of a sequence and gives it blocks for its first chunk.
func (e *scheduler) admit(s *sequence, budget int) (int, bool) {
	found := e.blocks.matching(s.keys)
	if len(found)*e.blocks.size >= s.prompt+s.output { // at least one token must be computed
		found = found[:len(found)-1]
	}
	for _, b := range found {
		e.blocks.use(b)
	}
	s.blocks = append(s.blocks, found...)
	s.computed = len(found) * e.blocks.size
	tokens := min(s.pending(), budget)
	if !e.grow(s, tokens) {
		e.blocks.release(s.blocks)
		s.blocks, s.computed = nil, 0
		return 0, false
	}
	e.totals.queried += s.prompt
	e.totals.hit += s.computed
	if !s.admitted {
		s.admitted, s.cached = true, s.computed
	}
	return tokens, true
}

// finish books a step: computed tokens, blocks that have become full, a sampled token where nothing is pending.
func (e *scheduler) finish(parts []part) {
	for _, p := range parts {
		s := p.of
		if s.blocks == nil { // preempted or gone meanwhile
			continue
		}
		s.computed += p.tokens
		for i := 0; i < len(s.keys) && (i+1)*e.blocks.size <= s.computed; i++ {
			e.blocks.name(s.blocks[i], s.keys[i])
		}
		if s.pending() > 0 || s.left {
			continue
		}
		s.output++
		e.totals.output++
		s.produced <- s.output // has room for all of them
	}
	kept := e.running[:0]
	for _, s := range e.running {
		if s.output >= s.most && !s.left {
			e.totals.finished++
			e.totals.prompt += s.prompt
			e.end(s)
		} else {
			kept = append(kept, s)
		}
	}
	e.running = kept
}
