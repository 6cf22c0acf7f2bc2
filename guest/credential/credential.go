// Package credential stores the guest's client certificate on its root disk.
//
// The place is the gap that a partitioned disk has before its first partition, so that
// the certificate survives restarts without a file system.
package credential

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
)

const (
	// Offset is where the area begins, in bytes from the begin of the disk.
	Offset = 512 << 10
	// Size of the area in bytes.
	Size = 64 << 10
)

// The area begins with magic, length of the JSON text, and its checksum (CRC-32,
// IEEE); both numbers are little endian.
var magic = []byte("MWGUEST1")

const headerSize = 16

var (
	// ErrNone means that the area is blank: nothing was ever stored.
	ErrNone = errors.New("no credential is stored")
	// ErrDamaged means that what is stored cannot be used: it may be replaced.
	ErrDamaged = errors.New("the stored credential is damaged")
	// ErrForeign means that the area holds something that is not ours: it is never
	// written.
	ErrForeign = errors.New("the place for the credential holds other data")
)

// Credential is how a Node shows the API server who it is. All fields are required.
type Credential struct {
	// Key is the private key in PEM form.
	Key []byte `json:"key"`
	// Certificate is the client certificate in PEM form.
	Certificate []byte `json:"cert"`
	// Authority are the certificates that vouch for the server, in PEM form.
	Authority []byte `json:"ca"`
	// Server is the URL that the certificate is for.
	Server string `json:"server"`
	// NodeName is the name of the Node that the certificate is for.
	NodeName string `json:"nodeName"`
}

// Store is a disk with a place for a credential.
type Store struct {
	// Path of the block device or file.
	Path string
}

// Load returns what Save stored. The error wraps ErrNone, ErrDamaged, ErrForeign, or that
// of the file system.
func (s Store) Load() (Credential, error) {
	disk, err := os.Open(s.Path)
	if err != nil {
		return Credential{}, err
	}
	defer func() { _ = disk.Close() }()
	return load(disk)
}

func load(disk io.ReaderAt) (Credential, error) {
	area := make([]byte, Size)
	if _, err := disk.ReadAt(area, Offset); err != nil {
		if errors.Is(err, io.EOF) {
			err = ErrForeign // a disk that is too small has no such place
		}
		return Credential{}, fmt.Errorf("reading the credential: %w", err)
	}
	if !bytes.HasPrefix(area, magic) {
		if len(bytes.Trim(area, "\x00")) == 0 {
			return Credential{}, ErrNone
		}
		return Credential{}, ErrForeign
	}
	return decode(area)
}

func decode(area []byte) (Credential, error) {
	length := binary.LittleEndian.Uint32(area[8:])
	if length > Size-headerSize {
		return Credential{}, fmt.Errorf("%w: its length is %d", ErrDamaged, length)
	}
	text := area[headerSize : headerSize+length]
	if crc32.ChecksumIEEE(text) != binary.LittleEndian.Uint32(area[12:]) {
		return Credential{}, fmt.Errorf("%w: its checksum is wrong", ErrDamaged)
	}
	var c Credential
	if err := json.Unmarshal(text, &c); err != nil {
		return Credential{}, fmt.Errorf("%w: it is no JSON object of the known fields", ErrDamaged)
	}
	return c, nil
}

// Save stores the credential, and returns when it is on the disk. The error wraps
// ErrForeign, or that of the file system; a failed write leaves what Load reports as
// damaged, or what was there.
func (s Store) Save(c Credential) (err error) {
	text, err := json.Marshal(c)
	if err != nil {
		return err
	}
	if len(text) > Size-headerSize {
		return fmt.Errorf("the credential needs %d bytes, and there is place for %d", len(text), Size-headerSize)
	}
	disk, err := os.OpenFile(s.Path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, disk.Close()) }()
	if _, err := load(disk); err != nil && !errors.Is(err, ErrNone) && !errors.Is(err, ErrDamaged) {
		return err
	}
	if _, err := disk.WriteAt(encode(text), Offset); err != nil {
		return err
	}
	return disk.Sync()
}

func encode(text []byte) []byte {
	area := make([]byte, Size)
	copy(area, magic)
	binary.LittleEndian.PutUint32(area[8:], uint32(len(text)))
	binary.LittleEndian.PutUint32(area[12:], crc32.ChecksumIEEE(text))
	copy(area[headerSize:], text)
	return area
}
