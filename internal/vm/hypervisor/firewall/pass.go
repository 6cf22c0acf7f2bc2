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

// Elsewhere are functions that get frames of a guest. They must not block. If one is nil, its frames are dropped.
type Elsewhere struct {
	// Guests gets the frames for other guests.
	Guests func(frame []byte)
	// Host gets the frames of connections that the hypervisor has opened to the guest, and those that may be datagrams in
	// response to those of the hypervisor.
	Host func(frame []byte)
}

// Pass reads frames from the guest and writes those that the rules allow to the network. It returns when reading
// fails. It never waits for the network, because QEMU blocks while Pass does not read. Frames have the format of
// QEMU's filter-redirector: a length of four bytes, big-endian, followed by the content.
//
// Frames for other guests, and those of the hypervisor's own connections and datagrams to the guest, go elsewhere instead of
// the network. Frames that look for neighbors go to both.
func Pass(rules Rules, guest io.Reader, network io.Writer, elsewhere Elsewhere) error {
	queue := make(chan []byte, maxQueued)
	written := make(chan struct{})
	go func() {
		defer close(written)
		write(network, queue)
	}()
	err := read(bufio.NewReaderSize(guest, maxFrame), func(frame []byte) {
		if elsewhere.Host != nil && rules.toHost(frame[lengthSize:]) {
			elsewhere.Host(frame[lengthSize:])
			return
		}
		if elsewhere.Guests != nil {
			toGuest, isDiscovery := rules.toGuest(frame[lengthSize:])
			if toGuest || isDiscovery {
				elsewhere.Guests(bytes.Clone(frame[lengthSize:]))
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
