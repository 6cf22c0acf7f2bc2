package sim

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
)

// dirStore is a store in a directory, for clouds that outlive a process or are used
// by several:
//
//	lock                                  locked (flock) by the writer
//	journal                               one JSON object per line, append only
//	zones                                 a JSON list of the zones; optional
//	vms/<namespace>/<machine>/<tail>.json a VM; tail is the end of its provider ID
//	vms/<namespace>/<machine>/<tail>.gone a VM that was removed
//
// The kernel releases the lock of a process that is killed. A VM appears, changes and goes
// by a rename, so it is never half-written.
type dirStore struct {
	dir string
	// mu serialises the users of this handle: flock counts per open file, not per
	// goroutine.
	mu       sync.Mutex
	lockFile *os.File
	logFile  *os.File
}

const (
	aliveSuffix = ".json"
	goneSuffix  = ".gone"
	zonesFile   = "zones"
	// scratch is the file to which everything is written before its rename. One is
	// enough, since there is one writer at a time.
	scratch = "scratch"
)

func openDirStore(dir string) (*dirStore, error) {
	if err := os.MkdirAll(filepath.Join(dir, "vms"), 0o700); err != nil {
		return nil, err
	}
	lockFile, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	logFile, err := os.OpenFile(filepath.Join(dir, "journal"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, errors.Join(err, lockFile.Close())
	}
	return &dirStore{dir: dir, lockFile: lockFile, logFile: logFile}, nil
}

func (d *dirStore) lock() (func(), error) {
	d.mu.Lock()
	for {
		err := syscall.Flock(int(d.lockFile.Fd()), syscall.LOCK_EX)
		if err == nil {
			break
		}
		if !errors.Is(err, syscall.EINTR) {
			d.mu.Unlock()
			return nil, fmt.Errorf("locking the cloud in %s: %w", d.dir, err)
		}
	}
	return func() {
		// Unlocking an open file cannot fail; if it did, closing would release it.
		_ = syscall.Flock(int(d.lockFile.Fd()), syscall.LOCK_UN)
		d.mu.Unlock()
	}, nil
}

func (d *dirStore) machineDir(key string) string {
	return filepath.Join(d.dir, "vms", filepath.FromSlash(key))
}

func (d *dirStore) path(v VM, suffix string) string {
	_, tail, _ := splitProviderID(v.ProviderID)
	return filepath.Join(d.machineDir(v.key()), tail+suffix)
}

func (d *dirStore) byMachine(key string) ([]VM, error) {
	names, err := d.names(key)
	if err != nil {
		return nil, err
	}
	var vms []VM
	for _, name := range names {
		if !strings.HasSuffix(name, aliveSuffix) {
			continue
		}
		v, ok, err := readVM(filepath.Join(d.machineDir(key), name))
		if err != nil {
			return nil, err
		}
		if ok {
			vms = append(vms, v)
		}
	}
	return vms, nil
}

// names lists the files of a machine in order of the VMs' creation.
func (d *dirStore) names(key string) ([]string, error) {
	entries, err := os.ReadDir(d.machineDir(key))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	slices.SortFunc(names, func(a, b string) int { return numberOf(a) - numberOf(b) })
	return names, nil
}

func readVM(path string) (VM, bool, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return VM{}, false, nil
	}
	if err != nil {
		return VM{}, false, err
	}
	var v VM
	if err := json.Unmarshal(data, &v); err != nil {
		return VM{}, false, fmt.Errorf("reading %s: %w", path, err)
	}
	return v, true, nil
}

func (d *dirStore) all() ([]VM, error) {
	paths, err := fs.Glob(os.DirFS(d.dir), "vms/*/*/*"+aliveSuffix)
	if err != nil {
		return nil, err
	}
	vms := make([]VM, 0, len(paths))
	for _, path := range paths {
		v, ok, err := readVM(filepath.Join(d.dir, path))
		if err != nil {
			return nil, err
		}
		if ok {
			vms = append(vms, v)
		}
	}
	return vms, nil
}

// inPool reads all VMs: a class with a capacity is slow in a directory.
func (d *dirStore) inPool(pool string) (int, error) {
	vms, err := d.all()
	count := 0
	for _, v := range vms {
		if v.Pool == pool {
			count++
		}
	}
	return count, err
}

func (d *dirStore) made(key string) (int, error) {
	names, err := d.names(key)
	if err != nil || len(names) == 0 {
		return 0, err
	}
	return numberOf(names[len(names)-1]), nil
}

func (d *dirStore) put(v VM) error {
	if err := os.MkdirAll(d.machineDir(v.key()), 0o700); err != nil {
		return err
	}
	return d.write(d.path(v, aliveSuffix), v)
}

// write writes a file as a whole.
func (d *dirStore) write(path string, content any) error {
	data, err := json.Marshal(content)
	if err != nil {
		return err
	}
	temp := filepath.Join(d.dir, scratch)
	if err := os.WriteFile(temp, data, 0o600); err != nil {
		return err
	}
	return os.Rename(temp, path)
}

func (d *dirStore) zones() ([]string, error) {
	data, err := os.ReadFile(filepath.Join(d.dir, zonesFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var names []string
	if err := json.Unmarshal(data, &names); err != nil {
		return nil, fmt.Errorf("reading %s in %s: %w", zonesFile, d.dir, err)
	}
	return names, nil
}

func (d *dirStore) setZones(names []string) error {
	return d.write(filepath.Join(d.dir, zonesFile), names)
}

func (d *dirStore) remove(v VM) error {
	err := os.Rename(d.path(v, aliveSuffix), d.path(v, goneSuffix))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func (d *dirStore) record(e Entry) error {
	e.PID = os.Getpid()
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	// One write of an append-only file is one piece, whoever else is writing.
	_, err = d.logFile.Write(append(line, '\n'))
	return err
}

func (d *dirStore) journal() ([]Entry, error) {
	data, err := os.ReadFile(filepath.Join(d.dir, "journal"))
	if err != nil {
		return nil, err
	}
	return decodeJournal(data)
}

func (d *dirStore) close() error {
	return errors.Join(d.lockFile.Close(), d.logFile.Close())
}
