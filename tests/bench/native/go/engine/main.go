// Command engine simulates vLLM engines behind real sockets: continuous batching, chunked prefill, a prefix cache of
// blocks, a KV limit with preemption, vLLM's APIs and metric names. Tokens mean nothing; their times are modelled.
package main

import (
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"
)

func main() {
	ports := flag.String("ports", "", "ports on 127.0.0.1, comma between them; each is an engine of its own")
	model := flag.String("model", "sim", "name of the model")
	most := flag.Int("max-num-seqs", 32, "running sequences")
	stepTokens := flag.Int("max-num-batched-tokens", 2048, "tokens of a step")
	blockTokens := flag.Int("block-size", 16, "tokens of a KV block")
	blocks := flag.Int("num-gpu-blocks", 4096, "KV blocks")
	var times costs
	flag.DurationVar(&times.base, "base", 12*time.Millisecond, "time of a step by itself")
	flag.DurationVar(&times.decode, "decode", 150*time.Microsecond, "and for each decoding sequence")
	flag.DurationVar(&times.prefill, "prefill", 125*time.Microsecond, "and for each prompt token computed")
	flag.Float64Var(&times.scale, "scale", 1, "factor on all times")
	flag.Parse()
	for _, port := range strings.Split(*ports, ",") {
		listener, err := net.Listen("tcp", "127.0.0.1:"+port)
		if err != nil {
			fmt.Fprintln(os.Stderr, "engine:", err)
			os.Exit(1)
		}
		engine := &scheduler{
			wake: make(chan struct{}, 1), blocks: newBlockPool(*blocks, *blockTokens),
			stepTokens: *stepTokens, most: *most, costs: times,
		}
		go engine.run()
		go http.Serve(listener, (&server{engine, *model, port}).handler())
	}
	select {}
}
