package main

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"time"
)

const (
	// streamed is the number of bytes that stream sends.
	streamed = 32 << 20
	// exchanged is the number of bytes that turns exchanges with a mirror.
	exchanged = 500
)

// stream sends over one connection until the other side has read everything.
func stream(address netip.AddrPort) (string, error) {
	conn, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(address))
	if err != nil {
		return "", err
	}
	defer conn.Close()
	block := make([]byte, 64<<10)
	started := time.Now()
	for range streamed / len(block) {
		if _, err := conn.Write(block); err != nil {
			return "", err
		}
	}
	if err := conn.CloseWrite(); err != nil {
		return "", err
	}
	if _, err := io.ReadFull(conn, make([]byte, len("bye"))); err != nil {
		return "", err
	}
	return fmt.Sprintf("%.1f MiB/s", float64(streamed>>20)/time.Since(started).Seconds()), nil
}

// turns measures the round-trip time of a byte.
func turns(address netip.AddrPort) (string, error) {
	conn, err := net.Dial("tcp", address.String())
	if err != nil {
		return "", err
	}
	defer conn.Close()
	times, one := make([]time.Duration, exchanged), make([]byte, 1)
	for i := range times {
		started := time.Now()
		if _, err := conn.Write(one); err != nil {
			return "", err
		}
		if _, err := io.ReadFull(conn, one); err != nil {
			return "", err
		}
		times[i] = time.Since(started)
	}
	slices.Sort(times)
	return times[len(times)/2].Round(time.Microsecond).String(), nil
}
