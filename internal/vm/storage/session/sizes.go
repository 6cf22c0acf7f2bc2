package session

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/millwright-dev/millwright/internal/vm/storage"
)

// Export returns the name of the NBD export of a data disk, or of the root disk if the name is empty.
func Export(name string) string {
	if name == "" {
		return "root"
	}
	return "data-" + name
}

// Constants of the NBD protocol, "fixed newstyle negotiation"
// (https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md).
const (
	nbdMagic      = 0x4e42444d41474943 // NBDMAGIC
	optionMagic   = 0x49484156454F5054 // IHAVEOPT
	replyMagic    = 0x3e889045565a9
	fixedNewstyle = 1
	noZeroes      = 2

	optionAbort = 2
	optionInfo  = 6

	replyAck     = 1
	replyInfo    = 3
	replyUnknown = 1<<31 + 6

	infoExport = 0
	// maxReply is above the length of any expected reply.
	maxReply = 4096
)

var errNotNBD = errors.New("the disk server does not use QEMU's variant of NBD")

// Sizes starts a session, queries the sizes of disks in bytes, and closes the session. The names are names of
// exports. Errors: those of Begin, or storage.ErrNoDisk.
func (c Carrier) Sizes(ctx context.Context, exports []string) ([]uint64, error) {
	conn, err := c.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(beginLimit)); err != nil {
		return nil, err
	}
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	return sizes(conn, exports)
}

// sizes is an NBD client that only queries sizes.
func sizes(conn io.ReadWriter, exports []string) ([]uint64, error) {
	var hello struct {
		Magic, Options uint64
		Flags          uint16
	}
	if err := binary.Read(conn, binary.BigEndian, &hello); err != nil {
		return nil, fmt.Errorf("waiting for the NBD server: %w", err)
	}
	if hello.Magic != nbdMagic || hello.Options != optionMagic || hello.Flags&fixedNewstyle == 0 {
		return nil, errNotNBD
	}
	if err := binary.Write(conn, binary.BigEndian, uint32(fixedNewstyle|hello.Flags&noZeroes)); err != nil {
		return nil, err
	}
	var all []uint64
	for _, export := range exports {
		size, err := sizeOf(conn, export)
		if err != nil {
			return nil, fmt.Errorf("the disk %q: %w", export, err)
		}
		all = append(all, size)
	}
	return all, ask(conn, optionAbort, nil)
}

func sizeOf(conn io.ReadWriter, export string) (size uint64, err error) {
	request := append(binary.BigEndian.AppendUint32(nil, uint32(len(export))), export...)
	request = append(request, 0, 0) // no specific information; every server provides the size
	if err := ask(conn, optionInfo, request); err != nil {
		return 0, err
	}
	for known := false; ; {
		kind, data, err := reply(conn)
		switch {
		case err != nil:
			return 0, err
		case kind == replyUnknown:
			return 0, storage.ErrNoDisk
		case kind == replyAck && known:
			return size, nil
		case kind != replyInfo || len(data) < 2:
			return 0, errNotNBD
		}
		if binary.BigEndian.Uint16(data) == infoExport && len(data) >= 10 {
			size, known = binary.BigEndian.Uint64(data[2:]), true
		}
	}
}

func ask(conn io.Writer, option uint32, data []byte) error {
	request := binary.BigEndian.AppendUint64(nil, optionMagic)
	request = binary.BigEndian.AppendUint32(request, option)
	request = binary.BigEndian.AppendUint32(request, uint32(len(data)))
	_, err := conn.Write(append(request, data...))
	return err
}

func reply(conn io.Reader) (kind uint32, data []byte, err error) {
	var header struct {
		Magic                uint64
		Option, Kind, Length uint32
	}
	if err := binary.Read(conn, binary.BigEndian, &header); err != nil {
		return 0, nil, fmt.Errorf("waiting for the NBD server: %w", err)
	}
	if header.Magic != replyMagic || header.Length > maxReply {
		return 0, nil, errNotNBD
	}
	data = make([]byte, header.Length)
	_, err = io.ReadFull(conn, data)
	return header.Kind, data, err
}
