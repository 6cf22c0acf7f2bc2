package sim

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// change is a line of the journal: an entry, a change of the cloud, or both.
type change struct {
	Entry
	// VM that is new or changed.
	VM *VM `json:"vm,omitempty"`
	// Zones replace the zones of the cloud unless they are nil.
	Zones []string `json:"zones,omitzero"`
	// Version is the version of the layout of all lines. It is zero in other lines.
	Version int `json:"version,omitzero"`
}

// store holds the state of a cloud, which results from its changes. In a directory, the changes are the lines of a
// file. Several processes append to the file while they hold its lock (flock). The kernel releases the lock of a
// killed process. Fields are used with the store locked.
type store struct {
	mu sync.Mutex
	// vms by provider ID.
	vms map[string]VM
	// byMachine contains the provider IDs of a machine's VMs, in order of creation.
	byMachine map[string][]string
	// made counts the VMs that have been created for a machine.
	made map[string]int
	// inPool and inZone count the VMs of a pool and of a zone; VMs without a zone are counted under "".
	inPool, inZone map[string]int
	// deleting contains the provider IDs of VMs whose deletion is not complete.
	deleting map[string]bool
	zones    []string
	// version is the version of the layout; zero if it is not recorded.
	version int

	// entries is the journal of a cloud in memory.
	entries []Entry
	// file is nil for a cloud in memory.
	file *os.File
	// read is the length of the part of the file that has been applied to the state.
	read int64
	// torn is true if the file is cut off within a line because its writer was killed.
	torn bool
}

// journalLimit is the number of entries that a cloud in memory keeps.
const journalLimit = 100_000

func newStore() *store {
	return &store{
		vms: map[string]VM{}, byMachine: map[string][]string{}, made: map[string]int{}, inPool: map[string]int{}, inZone: map[string]int{}, deleting: map[string]bool{},
	}
}

func openStore(dir string) (*store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(filepath.Join(dir, "journal"), os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	s := newStore()
	s.file = file
	unlock, err := s.lock()
	if err == nil {
		err = s.migrate(dir)
		unlock()
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return s, nil
}

func (s *store) close() error {
	if s.file == nil {
		return nil
	}
	return s.file.Close()
}

// lock waits for exclusive access, also among processes, and reads the changes of other processes.
func (s *store) lock() (unlock func(), err error) {
	s.mu.Lock() // flock excludes only other open files
	if s.file == nil {
		return s.mu.Unlock, nil
	}
	unlock = func() {
		_ = unix.Flock(int(s.file.Fd()), unix.LOCK_UN) // closing the file would also release it
		s.mu.Unlock()
	}
	err = unix.EINTR
	for errors.Is(err, unix.EINTR) {
		err = unix.Flock(int(s.file.Fd()), unix.LOCK_EX)
	}
	if err == nil {
		err = s.catchUp()
	}
	if err != nil {
		unlock()
		return nil, fmt.Errorf("cannot lock %s: %w", s.file.Name(), err)
	}
	return unlock, nil
}

// catchUp applies the lines of the file that have not been read yet.
func (s *store) catchUp() error {
	data, err := io.ReadAll(io.NewSectionReader(s.file, s.read, math.MaxInt64-s.read))
	if err != nil {
		return err
	}
	whole := bytes.LastIndexByte(data, '\n') + 1
	for c := range changesIn(data[:whole]) {
		s.apply(c)
	}
	s.read, s.torn = s.read+int64(whole), whole < len(data)
	return nil
}

// changesIn decodes lines of the file. It skips a torn line, which cannot be decoded.
func changesIn(lines []byte) iter.Seq[change] {
	return func(yield func(change) bool) {
		for line := range bytes.Lines(lines) {
			var c change
			if json.Unmarshal(line, &c) == nil && !yield(c) {
				return
			}
		}
	}
}

// add records a change and applies it.
func (s *store) add(c change) error {
	c.Time, c.PID = time.Now(), os.Getpid()
	if s.file == nil {
		s.apply(c)
		if len(s.entries) >= journalLimit {
			s.entries = slices.Delete(s.entries, 0, journalLimit/10)
		}
		s.entries = append(s.entries, c.Entry)
		return nil
	}
	line, err := json.Marshal(c)
	if err != nil {
		return err
	}
	if s.torn {
		line = append([]byte{'\n'}, line...)
	}
	if _, err := s.file.Write(append(line, '\n')); err != nil {
		return err
	}
	return s.catchUp()
}

func (s *store) apply(c change) {
	switch {
	case c.Version != 0:
		s.version = c.Version
	case c.Effect == Deleted || c.Effect == Vanished:
		s.drop(c.ProviderID)
	case c.VM != nil:
		s.put(*c.VM)
	case c.Zones != nil:
		s.zones = c.Zones
	}
}

func (s *store) put(v VM) {
	if _, exists := s.vms[v.ProviderID]; !exists {
		s.byMachine[v.key()] = append(s.byMachine[v.key()], v.ProviderID)
		s.made[v.key()]++
		s.inPool[v.Pool]++
		s.inZone[v.Zone]++
	}
	s.vms[v.ProviderID] = v.clone()
	if !v.GoneAt.IsZero() {
		s.deleting[v.ProviderID] = true
	}
}

func (s *store) drop(id string) {
	v, exists := s.vms[id]
	if !exists {
		return
	}
	delete(s.vms, id)
	delete(s.deleting, id)
	s.inPool[v.Pool]--
	s.inZone[v.Zone]--
	s.byMachine[v.key()] = slices.DeleteFunc(s.byMachine[v.key()], func(other string) bool { return other == id })
	if len(s.byMachine[v.key()]) == 0 {
		delete(s.byMachine, v.key())
	}
}

// get returns copies of the VMs with these provider IDs. It leaves out VMs that do not exist.
func (s *store) get(ids ...string) []VM {
	var vms []VM
	for _, id := range ids {
		if v, exists := s.vms[id]; exists {
			vms = append(vms, v.clone())
		}
	}
	return vms
}

// journal returns the entries, oldest first.
func (s *store) journal() ([]Entry, error) {
	if s.file == nil {
		return slices.Clone(s.entries), nil
	}
	data, err := io.ReadAll(io.NewSectionReader(s.file, 0, s.read))
	if err != nil {
		return nil, err
	}
	var entries []Entry
	for c := range changesIn(data) {
		if c.Method != "" || c.Effect != "" {
			entries = append(entries, c.Entry)
		}
	}
	return entries, nil
}
