package firewall

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
)

const (
	// maxFrame is above the largest frame of QEMU.
	maxFrame = 1 << 17
	// maxQueued is how many frames wait for the network. More are dropped, as in a switch.
	maxQueued = 1024
	// lengthSize is the size of the length before each frame.
	lengthSize = 4
)

// Pass reads frames of the guest and writes those that the rules allow to the network, until
// reading fails. It never waits for the network, since QEMU waits while nobody reads. Frames
// are in the form of QEMU's filter-redirector: a length of four bytes, big endian, and the
// content.
func Pass(rules Rules, guest io.Reader, network io.Writer) error {
	queue := make(chan []byte, maxQueued)
	written := make(chan struct{})
	go func() {
		defer close(written)
		write(network, queue)
	}()
	err := read(rules, bufio.NewReaderSize(guest, maxFrame), queue)
	close(queue)
	<-written
	return err
}

func read(rules Rules, guest io.Reader, queue chan<- []byte) error {
	var length [lengthSize]byte
	for {
		if _, err := io.ReadFull(guest, length[:]); err != nil {
			return err
		}
		size := binary.BigEndian.Uint32(length[:])
		if size > maxFrame {
			return fmt.Errorf("a frame of %d bytes", size)
		}
		frame := make([]byte, lengthSize+size)
		copy(frame, length[:])
		if _, err := io.ReadFull(guest, frame[lengthSize:]); err != nil {
			return err
		}
		if !rules.Allows(frame[lengthSize:]) {
			continue
		}
		select {
		case queue <- frame:
		default:
		}
	}
}

// write writes frames, several at a time if they come faster than they go. After an error it
// drops them: then reading fails too.
func write(network io.Writer, queue <-chan []byte) {
	out := bufio.NewWriterSize(network, maxFrame)
	for frame := range queue {
		_, _ = out.Write(frame) // the error stays, and is returned by Flush
		if len(queue) > 0 {
			continue
		}
		if out.Flush() != nil {
			out.Reset(io.Discard)
		}
	}
}
