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
	"time"

	"golang.org/x/sys/unix"

	"github.com/millwright-dev/millwright/internal/connlimit"
	"github.com/millwright-dev/millwright/internal/local/folder"
	"github.com/millwright-dev/millwright/internal/local/proc"
)

const loopback = "127.0.0.1"

func loopbackURL(port int) string {
	return "https://" + net.JoinHostPort(loopback, strconv.Itoa(port))
}

// ports are where the components listen on 127.0.0.1; 0 means not chosen yet.
type ports struct {
	APIServer         int `json:"apiserver"`
	Etcd              int `json:"etcd"`
	EtcdPeer          int `json:"etcdPeer"`
	ControllerManager int `json:"controllerManager"`
	Scheduler         int `json:"scheduler"`
	// Others are those of PortFor, by name.
	Others map[string]int `json:"others,omitempty"`
}

// PortTakenError means that a port of the configuration is in use.
type PortTakenError struct {
	// Port is the TCP port on 127.0.0.1.
	Port int
	// PID is the process that listens there, 0 if it is not known: it belongs to another
	// user or PID namespace.
	PID int
}

func (e *PortTakenError) Error() string {
	if e.PID == 0 {
		return fmt.Sprintf("port %d is taken by another process", e.Port)
	}
	return fmt.Sprintf("port %d is taken by process %d", e.Port, e.PID)
}

// choosePorts takes the explicit port for kube-apiserver. It prefers the last ports, which
// are in kubeconfigs, and reserves free ones otherwise. Errors: *PortTakenError.
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

// choosePort returns the explicit port, the last one or a free one, and adds it to those that
// are taken. 0 means none.
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
	return folder.WriteFile(path, content)
}

// PortFor returns a port on 127.0.0.1 for a neighbour of the control plane: the explicit one
// unless that is 0, else the last one of that name if it is free, else another free one,
// which the name keeps. Errors: *PortTakenError for an explicit port that is taken.
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
		return ports{}, nil // it is only a preference
	}
	return stored, nil
}

// Ports are chosen below those that Linux gives to outgoing connections: any client could
// take one of these while its owner restarts.
const (
	firstPort = 20000
	lastPort  = 32767
)

// reservations are ports that were chosen, until release. Between the choice of a port and the start of
// who listens there, another process that starts a control plane could choose the same.
type reservations struct{ sockets []int }

// keep reserves a port unless somebody listens on it, and reports whether it did.
func (r *reservations) keep(port int) bool {
	socket, err := reserve(port, true)
	if err != nil {
		return false
	}
	r.sockets = append(r.sockets, socket)
	return true
}

// freePort reserves a port that nobody listens on or has reserved. It chooses at random, so that processes
// that start at the same time rarely try the same one.
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
	return 0, fmt.Errorf("found no free port between %d and %d on %s", firstPort, lastPort, loopback)
}

// reserve binds a socket, and does not listen. Without SO_REUSEADDR that fails if another socket is bound;
// with it, as set afterwards, it lets those who also set it listen, which all servers do. With shared it is set before, too:
// that fails only if somebody listens, and not because of connections of an earlier run, which wait for late packets.
func reserve(port int, shared bool) (socket int, err error) {
	socket, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
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

// release gives the ports back.
func (r *reservations) release() error {
	var problems []error
	for _, socket := range r.sockets {
		problems = append(problems, unix.Close(socket))
	}
	r.sockets = nil
	return errors.Join(problems...)
}

// maxDownloads bounds the connections, which every process of this machine may open.
const maxDownloads = 512

// ServeFiles serves the disk images and kernels in a folder over HTTP on a port of 127.0.0.1
// until the context ends. It returns as soon as it serves; the channel receives the error, or
// nil, when it ends. Errors: *PortTakenError.
func ServeFiles(ctx context.Context, dir string, port int) (<-chan error, error) {
	listener, err := net.Listen("tcp4", net.JoinHostPort(loopback, strconv.Itoa(port)))
	if err != nil {
		return nil, errors.Join(&PortTakenError{Port: port, PID: proc.Listener(port)}, err)
	}
	server := &http.Server{Handler: filesOf(dir), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute}
	context.AfterFunc(ctx, func() { server.Close() }) // clients repeat downloads
	served := make(chan error, 1)
	go func() {
		err := server.Serve(connlimit.Listen(listener, maxDownloads, maxDownloads))
		if errors.Is(err, http.ErrServerClosed) {
			err = nil
		} else {
			err = fmt.Errorf("serving %s: %w", dir, err)
		}
		served <- err
	}()
	return served, nil
}

// filesOf serves the files of a folder. Links are followed if they stay in it. The folder is
// opened for each request: it may be created later, or be a link that changes.
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
