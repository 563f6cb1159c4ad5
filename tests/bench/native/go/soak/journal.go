package main

import (
	"fmt"
	"sync"
	"time"
)

// outcome is how a request ended, as its client saw it.
type outcome uint8

const (
	nothing    outcome = iota
	whole              // the right answer, byte for byte
	refused            // a status that is no 200, with an error in the API's shape
	endedByErr         // a stream that ended with an error event, and not as if it were whole
	cut                // the connection ended in the middle of the answer
	left               // the client went, as planned
	wrong              // another answer than the right one
	forged             // a stream that lacks tokens and yet ends as a whole one does
	late               // no answer in time
	dropped            // the connection ended before the answer began
)

var outcomeNames = []string{"nothing", "whole", "refused", "ended_by_error", "cut", "left", "wrong", "forged", "late", "dropped"}

// record is everything that is known of one request: its client's side, and all engines' side together.
type record struct {
	outcome                                   outcome
	attempts, completed, early, late, aborted uint8
	status                                    uint16
	engine                                    uint8   // which completed it first
	completedAt                               float32 // seconds from the start, then
}

// faults of engines: what a cut answer is explained by.
func (r *record) faults() int { return int(r.early) + int(r.late) + int(r.aborted) }

type kill struct {
	engine uint8
	at     float32
}

// A sidecar that is killed may take answers with it that its engine had already given: so long ago at most.
const killSeconds = 2.0

type journal struct {
	start   time.Time
	locks   [256]sync.Mutex
	records []record
	mu      sync.Mutex
	kills   []kill
}

func newJournal(requests int) *journal {
	return &journal{start: time.Now(), records: make([]record, requests)}
}

func (j *journal) now() float32 { return float32(time.Since(j.start).Seconds()) }

func (j *journal) note(id int, change func(*record)) {
	lock := &j.locks[id%len(j.locks)]
	lock.Lock()
	change(&j.records[id])
	lock.Unlock()
}

func (j *journal) killed(engine int) {
	j.mu.Lock()
	j.kills = append(j.kills, kill{uint8(engine), j.now()})
	j.mu.Unlock()
}

// lostWithItsSidecar: the answer was given by an engine whose sidecar was killed just then.
func (j *journal) lostWithItsSidecar(r *record) bool {
	for _, k := range j.kills {
		if since := k.at - r.completedAt; k.engine == r.engine && since > -0.5 && since < killSeconds {
			return true
		}
	}
	return false
}

// violation says what is wrong with a request; empty when both sides' counts agree and nothing was lost or doubled.
func (j *journal) violation(r *record) string {
	excused := r.completed > 0 && j.lostWithItsSidecar(r)
	switch r.outcome {
	case nothing, late, dropped, wrong, forged:
		return outcomeNames[r.outcome]
	case whole:
		if r.completed == 0 {
			return "whole, but no engine completed it"
		}
	case refused:
		if r.faults() == 0 && !excused {
			return fmt.Sprintf("refused with %d without an engine's fault", r.status)
		}
	case endedByErr, cut:
		if r.faults() == 0 && !excused {
			return outcomeNames[r.outcome] + " without an engine's fault"
		}
	}
	if r.completed > 1 && !excused {
		return "completed twice"
	}
	if int(r.attempts) > 1+r.faults() && !excused {
		return "asked more often than it failed"
	}
	return ""
}

// report counts everything, once both sides are done.
func (j *journal) report() map[string]any {
	outcomes, violations := map[string]int{}, map[string]int{}
	examples := []string{}
	var attempts, completed, early, late, aborted int
	for id := range j.records {
		r := &j.records[id]
		outcomes[outcomeNames[r.outcome]]++
		attempts += int(r.attempts)
		completed += int(r.completed)
		early += int(r.early)
		late += int(r.late)
		aborted += int(r.aborted)
		if what := j.violation(r); what != "" {
			violations[what]++
			if len(examples) < 20 {
				examples = append(examples, fmt.Sprintf("request %d: %s (%+v)", id, what, *r))
			}
		}
	}
	return map[string]any{
		"requests": len(j.records), "outcomes": outcomes, "violations": violations, "examples": examples,
		"engines": map[string]int{"asked": attempts, "completed": completed, "reset_before_answer": early,
			"reset_in_answer": late, "given_up": aborted},
		"kills": len(j.kills), "seconds": j.now(),
	}
}
