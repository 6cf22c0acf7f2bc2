// Package packetsocket connects a guest to a network interface of its Pod.
//
// It requires only the capability NET_RAW, and neither a bridge nor a tap device in the Pod. A [Socket] works like a port of a
// bridge: it reads the interface's frames for the guest, and writes the guest's frames to the interface. The guest has its own
// Ethernet address. The Pod keeps the addresses of the interface.
package packetsocket

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millwright-dev/millwright/internal/vm/network"
)

// ErrNoInterface means that the Pod does not have the interface.
var ErrNoInterface = errors.New("the interface does not exist")

// ErrNotPermitted means that this process may not open packet sockets.
var ErrNotPermitted = errors.New("the capability NET_RAW is required")

// Guest is a guest with its address on an interface.
type Guest struct {
	// VM is the namespace and name of the VM, for logs.
	VM string
	// MAC is the Ethernet address of the guest. It may send only from this address. Required.
	MAC net.HardwareAddr
}

// Socket is an open packet socket. Create it with Open.
type Socket struct {
	guest   Guest
	refused *network.Refusals
	file    *os.File
	raw     syscall.RawConn
	closed  atomic.Bool
	passing sync.WaitGroup
}

// Open opens a socket on an interface of the network namespace of this process. Errors: ErrNoInterface,
// ErrNotPermitted, or those of the system calls.
func Open(name string, guest Guest, log *slog.Logger) (*Socket, error) {
	device, err := net.InterfaceByName(name)
	if err != nil {
		return nil, fmt.Errorf("network interface %s: %w", name, ErrNoInterface)
	}
	fd, err := openPacketSocket()
	if errors.Is(err, unix.EPERM) {
		err = ErrNotPermitted
	}
	if err != nil {
		return nil, fmt.Errorf("network interface %s: opening a packet socket: %w", name, err)
	}
	if err := configure(fd, device.Index); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("network interface %s: %w", name, err)
	}
	s := &Socket{guest: guest, refused: network.NewRefusals(log), file: os.NewFile(uintptr(fd), name)}
	if s.raw, err = s.file.SyscallConn(); err != nil {
		_ = s.file.Close()
		return nil, fmt.Errorf("network interface %s: %w", name, err)
	}
	return s, nil
}

// configure prepares a new socket, and then makes it receive frames.
func configure(fd, index int) error {
	for _, option := range []struct{ name, value int }{
		{unix.PACKET_VNET_HDR, 1},        // frames have a header that describes missing checksums and segments
		{unix.PACKET_AUXDATA, 1},         // the kernel removes VLAN tags, and reports them separately
		{unix.PACKET_IGNORE_OUTGOING, 1}, // the Pod's own frames are not for the guest
	} {
		if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, option.name, option.value); err != nil {
			return os.NewSyscallError("setsockopt", err)
		}
	}
	// Unless the interface is promiscuous, it drops frames to other addresses than its own, such as the guest's.
	membership := unix.PacketMreq{Ifindex: int32(index), Type: unix.PACKET_MR_PROMISC}
	if err := unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, &membership); err != nil {
		return os.NewSyscallError("setsockopt", err)
	}
	// Until now, the socket has no protocol, so it receives no frames from other interfaces.
	err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: bigEndian(unix.ETH_P_ALL), Ifindex: index})
	return os.NewSyscallError("bind", err)
}

func bigEndian(n uint16) uint16 { return n<<8 | n>>8 }

// Pass passes frames between the interface and the guest until the connection is closed. Each message of the connection is
// a frame. Pass may then be called with another connection.
func (s *Socket) Pass(guest net.Conn) {
	_ = s.file.SetReadDeadline(time.Time{})
	s.passing.Go(func() {
		s.send(guest)
		_ = s.file.SetReadDeadline(time.Now()) // receive may otherwise wait forever for a frame
	})
	s.passing.Go(func() { s.receive(guest) })
	s.passing.Wait()
}

// Close closes the socket.
func (s *Socket) Close() {
	s.closed.Store(true)
	_ = s.file.Close()
}

// maxFrame exceeds the length, in bytes, of the longest frame that the kernel delivers, which consists of merged TCP segments.
const maxFrame = 1 << 17

// send sends the frames of the guest.
func (s *Socket) send(guest net.Conn) {
	buffer := make([]byte, vnetHeaderSize+maxFrame) // the header stays zero: frames of the guest are complete
	for {
		n, err := guest.Read(buffer[vnetHeaderSize:])
		if err != nil {
			return
		}
		if refusal := s.guest.inspect(buffer[vnetHeaderSize : vnetHeaderSize+n]); refusal != "" {
			s.refused.Count(s.guest.VM, refusal)
			continue
		}
		err = s.write(buffer[:vnetHeaderSize+n])
		if s.closed.Load() {
			return
		}
		if err != nil { // too long for the interface, or it is down or busy
			s.refused.Count(s.guest.VM, network.Unreachable)
		}
	}
}

// write sends a frame. It waits until the interface accepts it.
func (s *Socket) write(frame []byte) error {
	var result error
	err := s.raw.Write(func(fd uintptr) bool {
		_, result = unix.Write(int(fd), frame)
		return !errors.Is(result, unix.EAGAIN)
	})
	return errors.Join(err, result)
}

// receive delivers frames to the guest. While it waits for the guest, the kernel drops frames that exceed its buffer.
func (s *Socket) receive(guest net.Conn) {
	buffer := make([]byte, vnetHeaderSize+maxFrame)
	for {
		frame, tag, err := s.read(buffer)
		if s.closed.Load() || errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
		if err != nil || !s.guest.receives(frame[min(vnetHeaderSize, len(frame)):]) {
			continue // the kernel reports once that the interface is down
		}
		for complete := range frames(frame) {
			if _, err := guest.Write(tag.insert(complete)); errors.Is(err, net.ErrClosed) {
				return
			}
		}
	}
}

// read returns the next frame, with its header. It returns no frame if the frame is too long.
func (s *Socket) read(buffer []byte) ([]byte, vlanTag, error) {
	var control [64]byte
	var n, length, flags int
	var result error
	err := s.raw.Read(func(fd uintptr) bool {
		n, length, flags, _, result = unix.Recvmsg(int(fd), buffer, control[:], 0)
		return !errors.Is(result, unix.EAGAIN)
	})
	if err = errors.Join(err, result); err != nil || flags&unix.MSG_TRUNC != 0 {
		return nil, vlanTag{}, err
	}
	return buffer[:n], tagOf(control[:length]), nil
}
