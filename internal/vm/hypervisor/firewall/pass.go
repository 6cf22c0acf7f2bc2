package firewall

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
)

const (
	// maxFrame is above the size of QEMU's largest frame, in bytes.
	maxFrame = 1 << 17
	// maxQueued is the maximum number of frames that may wait for the network. Further frames are dropped, as in a
	// switch.
	maxQueued = 1024
	// lengthSize is the size of the length prefix of a frame.
	lengthSize = 4
)

// Pass reads frames from the guest and writes those that the rules allow to the network. It returns when reading
// fails. It never waits for the network, because QEMU blocks while Pass does not read. Frames have the format of
// QEMU's filter-redirector: a length of four bytes, big-endian, followed by the content.
//
// Frames for other guests are passed to the function toGuests instead of the network. The function must not block.
// Frames that look for neighbors go to both. If toGuests is nil, frames for other guests are dropped.
func Pass(rules Rules, guest io.Reader, network io.Writer, toGuests func(frame []byte)) error {
	queue := make(chan []byte, maxQueued)
	written := make(chan struct{})
	go func() {
		defer close(written)
		write(network, queue)
	}()
	err := read(bufio.NewReaderSize(guest, maxFrame), func(frame []byte) {
		if toGuests != nil {
			toGuest, isDiscovery := rules.toGuest(frame[lengthSize:])
			if toGuest || isDiscovery {
				toGuests(bytes.Clone(frame[lengthSize:]))
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

// read calls the function with each frame, including the length prefix.
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

// write writes frames. It writes in batches if frames arrive faster than they can be written. After an error it
// drops frames; reading then fails, too.
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
