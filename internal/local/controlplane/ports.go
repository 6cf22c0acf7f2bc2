package controlplane

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millwright-dev/millwright/internal/connlimit"
	"github.com/millwright-dev/millwright/internal/local/directory"
	"github.com/millwright-dev/millwright/internal/local/proc"
)

const loopback = "127.0.0.1"

func loopbackURL(port int) string {
	return "https://" + net.JoinHostPort(loopback, strconv.Itoa(port))
}

// ports are the ports on 127.0.0.1 on which the components listen. 0 means not chosen yet.
type ports struct {
	APIServer         int `json:"apiserver"`
	Etcd              int `json:"etcd"`
	EtcdPeer          int `json:"etcdPeer"`
	ControllerManager int `json:"controllerManager"`
	Scheduler         int `json:"scheduler"`
	// Others are the ports of PortFor, by name.
	Others map[string]int `json:"others,omitempty"`
}

// PortTakenError means that a port of the configuration is in use.
type PortTakenError struct {
	// Port is the TCP port on 127.0.0.1.
	Port int
	// PID is the process that listens there, or 0 if unknown because it belongs to another user or PID
	// namespace.
	PID int
}

func (e *PortTakenError) Error() string {
	if e.PID == 0 {
		return fmt.Sprintf("port %d is in use by another process", e.Port)
	}
	return fmt.Sprintf("port %d is in use by process %d", e.Port, e.PID)
}

// choosePorts uses the explicit port for kube-apiserver. It prefers the last ports, which are in kubeconfigs,
// and otherwise reserves free ones. It returns a *PortTakenError if the explicit port is in use.
func choosePorts(path string, explicit int, held *reservations) (ports, error) {
	chosen, err := loadPorts(path)
	if err != nil {
		return ports{}, err
	}
	taken := map[int]bool{}
	if chosen.APIServer, err = choosePort(explicit, chosen.APIServer, taken, held); err != nil {
		return ports{}, err
	}
	for _, port := range []*int{&chosen.Etcd, &chosen.EtcdPeer, &chosen.ControllerManager, &chosen.Scheduler} {
		if *port, err = choosePort(0, *port, taken, held); err != nil {
			return ports{}, err
		}
	}
	return chosen, chosen.store(path)
}

// choosePort returns the explicit port, the last one or a free one, and adds it to the ports in use. 0 means
// none.
func choosePort(explicit, last int, taken map[int]bool, held *reservations) (int, error) {
	port := explicit
	switch {
	case explicit != 0:
		if !held.keep(explicit) {
			return 0, &PortTakenError{Port: explicit, PID: proc.Listener(explicit)}
		}
	case last != 0 && !taken[last] && held.keep(last):
		port = last
	default:
		var err error
		if port, err = held.freePort(); err != nil {
			return 0, err
		}
	}
	taken[port] = true
	return port, nil
}

func (p ports) store(path string) error {
	content, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return directory.WriteFile(path, content)
}

// PortFor returns a port on 127.0.0.1 for a server that runs next to the control plane: the explicit port
// unless it is 0, otherwise the last port of that name if it is free, otherwise another free port, which the
// name keeps. It returns a *PortTakenError if an explicit port is in use.
func (cp *ControlPlane) PortFor(name string, explicit int) (int, error) {
	cp.mu.Lock()
	defer cp.mu.Unlock()
	last := cp.ports.Others[name]
	port, err := choosePort(explicit, last, map[int]bool{}, &cp.held)
	if err != nil || explicit != 0 || port == last {
		return port, err
	}
	if cp.ports.Others == nil {
		cp.ports.Others = map[string]int{}
	}
	cp.ports.Others[name] = port
	return port, cp.ports.store(cp.dir.ports())
}

func loadPorts(path string) (ports, error) {
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return ports{}, nil
	}
	if err != nil {
		return ports{}, err
	}
	var stored ports
	if json.Unmarshal(content, &stored) != nil {
		return ports{}, nil // the last ports are only a preference
	}
	return stored, nil
}

// Ports are chosen below those that Linux uses for outgoing connections: any client could take one of these
// while its owner restarts.
const (
	firstPort = 20000
	lastPort  = 32767
)

// reservations are chosen ports, until release. Another process that starts a control plane could otherwise
// choose the same port before the server of this one listens.
type reservations struct{ sockets []int }

// keep reserves a port unless a process listens on it, and reports whether it did.
func (r *reservations) keep(port int) bool {
	socket, err := reserve(port, true)
	if err != nil {
		return false
	}
	r.sockets = append(r.sockets, socket)
	return true
}

// freePort reserves a port that no process listens on or has reserved. It chooses at random, so that processes
// that start at the same time rarely try the same port.
func (r *reservations) freePort() (int, error) {
	for range 200 {
		port := firstPort + rand.IntN(lastPort-firstPort+1)
		socket, err := reserve(port, false)
		if err == nil {
			r.sockets = append(r.sockets, socket)
			return port, nil
		}
		if !errors.Is(err, unix.EADDRINUSE) {
			return 0, fmt.Errorf("reserving port %d on %s: %w", port, loopback, err)
		}
	}
	return 0, fmt.Errorf("no free port between %d and %d on %s", firstPort, lastPort, loopback)
}

// reserve binds a socket without listening. Without SO_REUSEADDR, that fails if another socket is bound; if set
// afterwards, it lets sockets listen that also set it, as all servers do. If shared is set, it is set before
// binding: that only fails if a process listens, and not because of connections of an earlier run, which wait
// for late packets.
func reserve(port int, shared bool) (socket int, err error) {
	// Not all systems can create a socket that programs do not inherit in one step.
	syscall.ForkLock.RLock()
	socket, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err == nil {
		unix.CloseOnExec(socket)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return 0, err
	}
	reuse := func() error { return unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) }
	if shared {
		err = reuse()
	}
	if err == nil {
		err = unix.Bind(socket, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}})
	}
	if err == nil {
		err = reuse()
	}
	if err != nil {
		return 0, errors.Join(err, unix.Close(socket))
	}
	return socket, nil
}

// release releases the ports.
func (r *reservations) release() error {
	var problems []error
	for _, socket := range r.sockets {
		problems = append(problems, unix.Close(socket))
	}
	r.sockets = nil
	return errors.Join(problems...)
}

// maxDownloads limits the connections, which every process of this machine may open.
const maxDownloads = 512

// ServeFiles serves the disk images and kernels in a directory over HTTP on a port of 127.0.0.1 until the
// context is done. It returns as soon as it serves; the channel receives an error, or nil, when it stops. It
// returns a *PortTakenError if the port is in use.
func ServeFiles(ctx context.Context, dir string, port int) (<-chan error, error) {
	listener, err := net.Listen("tcp4", net.JoinHostPort(loopback, strconv.Itoa(port)))
	if err != nil {
		return nil, errors.Join(&PortTakenError{Port: port, PID: proc.Listener(port)}, err)
	}
	server := &http.Server{Handler: filesOf(dir), ConnState: connlimit.AnonymousHTTP, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute}
	context.AfterFunc(ctx, func() { server.Close() }) // clients retry downloads
	served := make(chan error, 1)
	go func() {
		err := server.Serve(connlimit.Listen(listener, maxDownloads))
		if errors.Is(err, http.ErrServerClosed) {
			err = nil
		} else {
			err = fmt.Errorf("serving %s: %w", dir, err)
		}
		served <- err
	}()
	return served, nil
}

// filesOf serves the files of a directory. Links are followed if they stay inside. The directory is opened for
// each request: it may be created later, or be a link that changes.
func filesOf(dir string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		root, err := os.OpenRoot(dir)
		if err != nil {
			http.NotFound(w, r)
			return
		}
		defer root.Close()
		http.FileServerFS(root.FS()).ServeHTTP(w, r)
	})
}
