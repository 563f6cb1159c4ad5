package main

import "container/list"

// block is one KV block. Its key names the prompt text up to and with it; 0 while it has none.
type block struct {
	key   uint64
	users int
	place *list.Element // among the unused ones, nil while it is used
}

// blockPool holds an engine's KV blocks. A block that nobody uses keeps its content until it is needed: `unused` is
// in order of eviction, and `known` finds blocks by their key.
type blockPool struct {
	size   int // tokens of a block
	total  int
	unused *list.List
	known  map[uint64]*block
}

func newBlockPool(total, size int) *blockPool {
	pool := &blockPool{size: size, total: total, unused: list.New(), known: map[uint64]*block{}}
	for range total {
		b := &block{}
		b.place = pool.unused.PushBack(b)
	}
	return pool
}

func (p *blockPool) use(b *block) {
	if b.users++; b.users == 1 {
		p.unused.Remove(b.place)
		b.place = nil
	}
}

// fresh takes the block that has been unused the longest; nil when all are used.
func (p *blockPool) fresh() *block {
	front := p.unused.Front()
	if front == nil {
		return nil
	}
	b := front.Value.(*block)
	if b.key != 0 {
		delete(p.known, b.key)
		b.key = 0
	}
	p.use(b)
	return b
}

// matching returns the known blocks at the beginning of a chain of keys.
func (p *blockPool) matching(keys []uint64) []*block {
	var found []*block
	for _, key := range keys {
		b := p.known[key]
		if b == nil {
			break
		}
		found = append(found, b)
	}
	return found
}

// name makes a block findable, unless another one already has that content.
func (p *blockPool) name(b *block, key uint64) {
	if b.key == 0 && p.known[key] == nil {
		b.key = key
		p.known[key] = b
	}
}

// release gives blocks back, the last one first, so that the head of a shared prefix is evicted last.
func (p *blockPool) release(blocks []*block) {
	for i := len(blocks) - 1; i >= 0; i-- {
		b := blocks[i]
		if b.users--; b.users > 0 {
			continue
		}
		if b.key == 0 {
			b.place = p.unused.PushFront(b)
		} else {
			b.place = p.unused.PushBack(b)
		}
	}
}

func (p *blockPool) blocksFor(tokens int) int { return (tokens + p.size - 1) / p.size }

func (p *blockPool) usage() float64 { return 1 - float64(p.unused.Len())/float64(p.total) }
