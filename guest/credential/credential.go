// Package credential stores the guest's client certificate on its root disk, in the gap before the first
// partition, so that it survives restarts without a file system.
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
	// Offset of the area on the disk, in bytes.
	Offset = 512 << 10
	// Size of the area in bytes.
	Size = 64 << 10
)

// The area begins with magic, and the length and the checksum (CRC-32, IEEE) of the JSON text as little-endian
// numbers.
var magic = []byte("MWGUEST1")

const headerSize = 16

var (
	// ErrNone means that the area is blank.
	ErrNone = errors.New("no credential is stored")
	// ErrDamaged means that the stored credential cannot be used. It may be replaced.
	ErrDamaged = errors.New("the stored credential is damaged")
	// ErrForeign means that the area holds other data. It is never overwritten.
	ErrForeign = errors.New("the area for the credential holds other data")
)

// Credential authenticates a Node to the API server. All fields are required.
type Credential struct {
	// Key is the private key in PEM form.
	Key []byte `json:"key"`
	// Certificate is the client certificate in PEM form.
	Certificate []byte `json:"cert"`
	// Authority are the certificate authorities of the server, in PEM form.
	Authority []byte `json:"ca"`
	// Server is the URL of the API server.
	Server string `json:"server"`
	// NodeName is the name of the Node.
	NodeName string `json:"nodeName"`
}

// Store is a disk with an area for a credential.
type Store struct {
	// Path of the block device or file.
	Path string
}

// Load returns the stored credential. It returns ErrNone, ErrDamaged, ErrForeign, and errors of the file
// system.
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
			err = ErrForeign // the disk is too small for the area
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
		return Credential{}, fmt.Errorf("%w: it is not a JSON object with the known fields", ErrDamaged)
	}
	return c, nil
}

// Save stores the credential durably. It returns ErrForeign, and errors of the file system. After a failed
// write, Load returns ErrDamaged or the old credential.
func (s Store) Save(c Credential) (err error) {
	text, err := json.Marshal(c)
	if err != nil {
		return err
	}
	if len(text) > Size-headerSize {
		return fmt.Errorf("the credential needs %d bytes, but only %d are available", len(text), Size-headerSize)
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
