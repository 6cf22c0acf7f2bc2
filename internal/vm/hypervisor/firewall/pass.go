package firewall

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
)

const (
	// maxFrame is above the largest frame of QEMU.
	maxFrame = 1 << 17
	// maxQueued is how many frames may wait for the network. Further frames are dropped, as in a switch.
	maxQueued = 1024
	// lengthSize is the size of the length before each frame.
	lengthSize = 4
)

// Pass reads frames of the guest and writes those that the rules allow to the network, until reading fails. It never
// waits for the network, since QEMU blocks while Pass does not read. Frames have the format of QEMU's
// filter-redirector: a length of four bytes, big endian, and the content.
//
// Frames for other guests are passed to the function others, which must not block, instead of the network; ARP goes
// to both. If others is nil, frames for other guests are dropped.
func Pass(rules Rules, guest io.Reader, network io.Writer, others func(frame []byte)) error {
	queue := make(chan []byte, maxQueued)
	written := make(chan struct{})
	go func() {
		defer close(written)
		write(network, queue)
	}()
	err := read(bufio.NewReaderSize(guest, maxFrame), func(frame []byte) {
		if others != nil {
			toGuest, isARP := rules.toGuest(frame[lengthSize:])
			if toGuest || isARP {
				others(bytes.Clone(frame[lengthSize:]))
			}
			if toGuest {
				return
			}
		}
		if !rules.Allows(frame[lengthSize:]) {
			return
		}
		select {
		case queue <- frame:
		default:
		}
	})
	close(queue)
	<-written
	return err
}

// read calls the function with each frame, including the length before it.
func read(guest io.Reader, use func(frame []byte)) error {
	var length [lengthSize]byte
	for {
		if _, err := io.ReadFull(guest, length[:]); err != nil {
			return err
		}
		size := binary.BigEndian.Uint32(length[:])
		if size > maxFrame {
			return fmt.Errorf("frame of %d bytes is out of range", size)
		}
		frame := make([]byte, lengthSize+size)
		copy(frame, length[:])
		if _, err := io.ReadFull(guest, frame[lengthSize:]); err != nil {
			return err
		}
		use(frame)
	}
}

// write writes frames, in batches if they come faster than they can be written. It drops them after an error: then
// reading fails, too.
func write(network io.Writer, queue <-chan []byte) {
	out := bufio.NewWriterSize(network, maxFrame)
	for frame := range queue {
		_, _ = out.Write(frame) // the error persists, and Flush returns it
		if len(queue) > 0 {
			continue
		}
		if out.Flush() != nil {
			out.Reset(io.Discard)
		}
	}
}
