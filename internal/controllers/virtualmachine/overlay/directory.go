// Package overlay keeps where the guests of running VMs are, for the hypervisors of other VMs.
//
// A [Directory] contains the location of each VM, and followers that learn the changes. It decides nothing: package
// service determines the locations.
package overlay

import (
	"maps"
	"slices"
	"sync"

	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/types"

	overlaypb "github.com/millwright-dev/millwright/proto/overlay"
)

// maxLog is the maximum number of changes that a network remembers. A follower that has missed more gets a snapshot.
const maxLog = 1024

// Directory contains the locations of VMs. Create one with New. It is safe for concurrent use.
type Directory struct {
	networkOf func(namespace string) string

	mu       sync.Mutex
	networks map[string]*guests
}

// guests are the VMs that reach each other.
type guests struct {
	// peers has the VMs that have or may have a location, by NAMESPACE/NAME.
	peers map[string]*overlaypb.Peer
	// log has the names of the VMs that have changed. The first change has the number first.
	log   []string
	first uint64
	// changed is closed when there is another change.
	changed chan struct{}
}

// New returns a Directory without VMs. networkOf returns the network of the VMs in a namespace. VMs in the same network
// learn each other's locations.
func New(networkOf func(namespace string) string) *Directory {
	return &Directory{networkOf: networkOf, networks: map[string]*guests{}}
}

// of returns the network of a VM. The caller must hold the lock.
func (d *Directory) of(vm types.NamespacedName) *guests {
	name := d.networkOf(vm.Namespace)
	if d.networks[name] == nil {
		d.networks[name] = &guests{peers: map[string]*overlaypb.Peer{}, changed: make(chan struct{})}
	}
	return d.networks[name]
}

// Set stores the location of a VM, and nil if it has none. Its name is set by Set. Followers get
// STATE_UNCHANGED only in snapshots.
func (d *Directory) Set(vm types.NamespacedName, peer *overlaypb.Peer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	network, name := d.of(vm), vm.String()
	last := network.peers[name]
	if peer != nil {
		peer.Vm = name
	}
	if proto.Equal(last, peer) {
		return
	}
	if peer == nil {
		delete(network.peers, name)
	} else {
		network.peers[name] = peer
	}
	if peer.GetState() == overlaypb.Peer_STATE_UNCHANGED {
		return
	}
	network.log = append(network.log, name)
	if len(network.log) > maxLog {
		half := len(network.log) / 2
		network.first += uint64(half)
		network.log = slices.Clone(network.log[half:])
	}
	close(network.changed)
	network.changed = make(chan struct{})
}

// Peer returns the location of a VM that is in the network of another one, by NAMESPACE/NAME; nil if it has none.
func (d *Directory) Peer(of types.NamespacedName, name string) *overlaypb.Peer {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.of(of).peers[name]
}

// Follower follows the network of a VM. It is used by a single goroutine.
type Follower struct {
	directory *Directory
	vm        types.NamespacedName
	// next is the number of the next change. It is not valid before the snapshot.
	next    uint64
	started bool
}

// Follow returns a follower of the network of a VM. The VM itself is not reported to it.
func (d *Directory) Follow(vm types.NamespacedName) *Follower { return &Follower{directory: d, vm: vm} }

// Next returns what has changed since the last call, or nil if nothing has. The first call returns a snapshot. changed
// is closed when there may be another change.
func (f *Follower) Next() (update *overlaypb.Update, changed <-chan struct{}) {
	f.directory.mu.Lock()
	defer f.directory.mu.Unlock()
	network := f.directory.of(f.vm)
	last := network.first + uint64(len(network.log))
	update = &overlaypb.Update{}
	var names []string
	if !f.started || f.next < network.first {
		update.Snapshot, f.started = true, true
		names = slices.Collect(maps.Keys(network.peers))
	} else {
		names = slices.Clone(network.log[f.next-network.first:])
	}
	f.next = last
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if name == f.vm.String() {
			continue
		}
		peer := network.peers[name]
		if peer == nil {
			peer = &overlaypb.Peer{Vm: name, State: overlaypb.Peer_STATE_ABSENT}
		}
		update.Peers = append(update.Peers, peer)
	}
	if !update.Snapshot && len(update.Peers) == 0 {
		update = nil
	}
	return update, network.changed
}
