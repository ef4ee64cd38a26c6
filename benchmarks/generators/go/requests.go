// The same frames over many connections, one outstanding on each: a goroutine for each connection that writes a
// frame and waits for the answer, as most clients do. It has all cores, where the epoll loop in Python has one.
package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

type arguments struct {
	Address     string   `json:"address"`
	Connections int      `json:"connections"`
	WarmUpS     float64  `json:"warm_up_s"`
	Seconds     float64  `json:"seconds"`
	ErrorAt     int      `json:"error_at"`
	Frames      [][]byte `json:"frames"`
}

const (
	warmingUp int32 = iota
	measuring
	ending
)

// A line of the caches for each connection: counters of neighbours must not get into each other's way.
type count struct {
	warmUp, measured uint64
	_                [48]byte
}

func cpuSeconds() float64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		fail(err)
	}
	return float64(usage.Utime.Nano()+usage.Stime.Nano()) / 1e9
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// Sends frames until the phase is over; the last answer is read, so that nothing is left half done.
func keepBusy(conn net.Conn, number int, args *arguments, phase *atomic.Int32, counted *count) {
	answer := make([]byte, 4096)
	for next := number; ; next++ {
		now := phase.Load()
		if now == ending {
			return
		}
		if _, err := conn.Write(args.Frames[next%len(args.Frames)]); err != nil {
			fail(err)
		}
		if _, err := io.ReadFull(conn, answer[:4]); err != nil {
			fail(err)
		}
		size := int(binary.BigEndian.Uint32(answer)) + 4
		if size > len(answer) {
			fail(fmt.Errorf("an answer of %d bytes", size))
		}
		if _, err := io.ReadFull(conn, answer[4:size]); err != nil {
			fail(err)
		}
		if code := binary.BigEndian.Uint16(answer[args.ErrorAt:]); code != 0 {
			fail(fmt.Errorf("the broker refused a request with error %d", code))
		}
		if now == measuring {
			counted.measured++
		} else {
			counted.warmUp++
		}
	}
}

func main() {
	var args arguments
	if err := json.Unmarshal([]byte(os.Args[1]), &args); err != nil {
		fail(err)
	}
	var phase atomic.Int32
	var running sync.WaitGroup
	counts := make([]count, args.Connections)
	for number := range counts {
		conn, err := net.Dial("tcp", args.Address)
		if err != nil {
			fail(err)
		}
		defer conn.Close()
		running.Add(1)
		go func() {
			defer running.Done()
			keepBusy(conn, number, &args, &phase, &counts[number])
		}()
	}
	time.Sleep(time.Duration(args.WarmUpS * 1e9))
	started, cpuBefore := time.Now(), cpuSeconds()
	phase.Store(measuring)
	time.Sleep(time.Duration(args.Seconds * 1e9))
	phase.Store(ending)
	elapsed, cpu := time.Since(started).Seconds(), cpuSeconds()-cpuBefore
	running.Wait()
	var warmUp, measured uint64
	for i := range counts {
		warmUp += counts[i].warmUp
		measured += counts[i].measured
	}
	result := map[string]float64{
		"requests_total":  float64(warmUp + measured),
		"requests":        float64(measured),
		"elapsed_s":       elapsed,
		"generator_cpu_s": cpu,
	}
	if err := json.NewEncoder(os.Stdout).Encode(result); err != nil {
		fail(err)
	}
}
