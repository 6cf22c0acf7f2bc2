package controlplane

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"strconv"

	"github.com/millwright-dev/millwright/internal/local/folder"
	"github.com/millwright-dev/millwright/internal/local/proc"
)

// ports are where the components listen on 127.0.0.1. The zero value of one means
// that it has not been chosen.
type ports struct {
	APIServer         int `json:"apiserver"`
	Etcd              int `json:"etcd"`
	EtcdPeer          int `json:"etcdPeer"`
	ControllerManager int `json:"controllerManager"`
	Scheduler         int `json:"scheduler"`
	// Others are those of PortFor, by name.
	Others map[string]int `json:"others,omitempty"`
}

// PortTakenError says that a port that was asked for is in use.
type PortTakenError struct {
	// Port is the TCP port on 127.0.0.1.
	Port int
	// PID is the process that listens there, 0 if that cannot be found out (it
	// belongs to another user, or sits in another process namespace).
	PID int
}

func (e *PortTakenError) Error() string {
	if e.PID == 0 {
		return fmt.Sprintf("port %d is taken by another process", e.Port)
	}
	return fmt.Sprintf("port %d is taken by process %d", e.Port, e.PID)
}

// choosePorts takes the explicit port for kube-apiserver or fails; for everything
// else it prefers the ports of the last time (kubeconfigs that were handed out name
// one) and takes free ones otherwise.
func choosePorts(path string, explicit int) (ports, error) {
	chosen, err := loadPorts(path)
	if err != nil {
		return ports{}, err
	}
	if explicit != 0 {
		if !portFree(explicit) {
			return ports{}, &PortTakenError{Port: explicit, PID: proc.Listener(explicit)}
		}
		chosen.APIServer = explicit
	}
	taken := map[int]bool{}
	for _, port := range []*int{&chosen.APIServer, &chosen.Etcd, &chosen.EtcdPeer, &chosen.ControllerManager, &chosen.Scheduler} {
		if *port == 0 || taken[*port] || !portFree(*port) {
			if *port, err = freePort(taken); err != nil {
				return ports{}, err
			}
		}
		taken[*port] = true
	}
	return chosen, chosen.store(path)
}

func (p ports) store(path string) error {
	content, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return folder.WriteFile(path, content)
}

// PortFor returns a port on 127.0.0.1 for something that belongs to the control plane: the
// explicit one unless that is 0, else the one that the name had the last time, else a free
// one, which the name keeps. Errors: *PortTakenError for an explicit port that is taken.
func (cp *ControlPlane) PortFor(name string, explicit int) (int, error) {
	cp.mu.Lock()
	defer cp.mu.Unlock()
	if explicit != 0 {
		if !portFree(explicit) {
			return 0, &PortTakenError{Port: explicit, PID: proc.Listener(explicit)}
		}
		return explicit, nil
	}
	if last := cp.ports.Others[name]; last != 0 && portFree(last) {
		return last, nil
	}
	port, err := freePort(map[int]bool{})
	if err != nil {
		return 0, err
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
		return ports{}, nil // only a preference; an unreadable one is none
	}
	return stored, nil
}

func portFree(port int) bool {
	listener, err := net.Listen("tcp4", net.JoinHostPort(loopback, strconv.Itoa(port)))
	if err != nil {
		return false
	}
	return listener.Close() == nil
}

// The ports to choose from end where Linux begins to hand out local ports to
// outgoing connections. One from there could be taken by any client in the
// moment when its owner restarts.
const (
	firstPort = 20000
	lastPort  = 32767
)

// freePort draws at random, so that control planes which start at the same time
// do not reach for the same port.
func freePort(taken map[int]bool) (int, error) {
	for range 200 {
		port := firstPort + rand.IntN(lastPort-firstPort+1)
		if !taken[port] && portFree(port) {
			return port, nil
		}
	}
	return 0, fmt.Errorf("found no free port between %d and %d on %s", firstPort, lastPort, loopback)
}
