// Package diskserver serves the disks of one virtual machine to its hypervisors, and excludes those that ran it
// earlier.
//
// Each fencing token has its own qemu-storage-daemon, which exports the disks by NBD on a unix socket. Revoking a
// token kills its daemon and waits until it has terminated, so nothing that was sent before arrives later. Revoked
// tokens are recorded in a file next to the first disk.
//
// Hypervisors have TLS sessions, each with the daemon of its token. The VM controller has opened the token for the
// hypervisor's Pod.
package diskserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/disk"
	"github.com/millwright-dev/millwright/internal/vm/storage"
)

// Disk is a raw disk file to serve.
type Disk struct {
	// Name is the name of the NBD export. It must be unique. Required.
	Name string
	// Path is the path of an existing file. Required. Next to it is its lock, PATH.lock. Next to the first disk is
	// the record of tokens: PATH.fence and, with space for the next record, PATH.fence.next.
	Path string
}

// Config is the input of New.
type Config struct {
	// Disks are the disks of the virtual machine, at least one.
	Disks []Disk
	// Run is an existing directory for sockets, which no other user may access. Required.
	Run string
	// Locks are the locks of the disks, which the caller holds and releases after Close. If nil, New acquires them.
	Locks []*disk.Lock
	// Grow enlarges disks to the desired sizes in bytes, and returns the sizes of all disks. The keys are the names
	// of data disks, and empty for the root disk. Running daemons continue to serve the sizes with which they
	// started. If nil, the disks cannot grow.
	Grow func(wanted map[string]uint64) (map[string]uint64, error)
	// Program is the storage daemon, a path or a name in PATH. The default is DefaultProgram.
	Program string
	// Log is the logger. If nil, nothing is logged.
	Log *slog.Logger

	boot string // if empty, bootID is used
}

// Server owns the disks of one virtual machine. It is safe for concurrent use.
type Server struct {
	config Config
	log    *slog.Logger
	folder *os.File
	locks  []*disk.Lock

	mu      sync.Mutex
	record  record
	exports map[storage.Token]*export
	closed  bool
}

// export is an opened token. It is kept until its daemon has terminated.
type export struct {
	pod    string
	daemon *daemon
	// sessions are the sessions to cut.
	sessions map[io.Closer]struct{}
}

// New locks the disks, and reads which tokens were revoked. Nothing is open yet. The server must be closed. Errors:
// disk.ErrLocked as long as a daemon of an earlier process, or any other process, holds a disk.
func New(config Config) (*Server, error) {
	config.Program = cmp.Or(config.Program, DefaultProgram)
	s := &Server{config: config, log: config.Log, exports: map[storage.Token]*export{}}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if err := s.take(); err != nil {
		s.release()
		return nil, err
	}
	return s, nil
}

// take acquires the server's resources.
func (s *Server) take() (err error) {
	if err := s.lock(); err != nil {
		return err
	}
	if s.folder, err = os.OpenFile(s.config.Run, unix.O_PATH|unix.O_DIRECTORY, 0); err != nil {
		return fmt.Errorf("opening the directory of sockets: %w", err)
	}
	return s.remember()
}

// lock locks the disks, unless the caller has done that.
func (s *Server) lock() error {
	if s.config.Locks != nil {
		return nil
	}
	for _, d := range s.config.Disks {
		lock, err := disk.Acquire(d.Path)
		if err != nil {
			return fmt.Errorf("disk %s: %w", d.Name, err)
		}
		s.locks = append(s.locks, lock)
	}
	return nil
}

// remember reads the record, and revokes what was open when the host rebooted.
func (s *Server) remember() (err error) {
	if s.config.boot == "" {
		if s.config.boot, err = bootID(); err != nil {
			return err
		}
	}
	if s.record, err = readRecord(s.recordPath()); err != nil {
		return err
	}
	if next := s.record.after(s.config.boot); next != s.record {
		s.log.Warn("the host was rebooted; revoked the tokens that were in use", "upTo", next.Revoked)
		return s.store(next)
	}
	return reserve(s.recordPath())
}

// store changes the record once that is durable.
func (s *Server) store(next record) error {
	if err := next.write(s.recordPath()); err != nil {
		return err
	}
	s.record = next
	return nil
}

func (s *Server) release() {
	for _, lock := range s.locks {
		_ = lock.Release()
	}
	if s.folder != nil {
		_ = s.folder.Close()
	}
}

func (s *Server) recordPath() string { return s.config.Disks[0].Path + recordSuffix }

// lockFiles returns the locks, which the daemons inherit, so that the disks are locked until the last daemon has
// terminated.
func (s *Server) lockFiles() []*os.File {
	var files []*os.File
	for _, lock := range slices.Concat(s.config.Locks, s.locks) {
		files = append(files, lock.File())
	}
	return files
}

// maxSessions is the maximum number of sessions with one token. It is far above the number of disks of a virtual
// machine.
const maxSessions = 64

// errTooMany means that a token has maxSessions.
var errTooMany = errors.New("too many sessions with this fencing token")

// errClosed means that the server is closed.
var errClosed = errors.New("the disk server is shutting down")

// Open lets the hypervisor in a Pod attach the disks with a token. It returns when the disks are served. Errors:
// those of storage.Volume.
func (s *Server) Open(ctx context.Context, token storage.Token, pod string) error {
	daemon, err := s.admit(token, pod)
	if err != nil {
		return err
	}
	return daemon.awaitReady(ctx)
}

// admit returns a daemon for the token, which may not be ready.
func (s *Server) admit(token storage.Token, pod string) (*daemon, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.exports[token]
	switch {
	case s.closed:
		return nil, errClosed
	case token == 0:
		return nil, storage.ErrNoToken
	case token <= s.record.Revoked:
		return nil, storage.ErrRevoked
	case known != nil && known.pod != pod:
		return nil, storage.ErrOtherHolder
	case known != nil && known.daemon.alive():
		return known.daemon, nil
	}
	if next := (record{Revoked: s.record.Revoked, Opened: max(s.record.Opened, token), Boot: s.config.boot}); next != s.record {
		if err := s.store(next); err != nil {
			return nil, err
		}
	}
	daemon, err := s.startDaemon(token)
	if err != nil {
		return nil, err
	}
	s.exports[token] = &export{pod: pod, daemon: daemon, sessions: map[io.Closer]struct{}{}}
	s.log.Info("the disks are open", "token", token, "pod", pod)
	return daemon, nil
}

// join adds a session that is cut when the token is revoked, and returns the token's daemon. Errors: ErrRevoked,
// ErrNotOpen, also for a token of another Pod, or errTooMany.
func (s *Server) join(token storage.Token, pod string, session io.Closer) (*daemon, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if token <= s.record.Revoked {
		return nil, storage.ErrRevoked
	}
	export := s.exports[token]
	switch {
	case export == nil || export.pod != pod || s.closed:
		return nil, storage.ErrNotOpen
	case len(export.sessions) == maxSessions:
		return nil, errTooMany
	}
	export.sessions[session] = struct{}{}
	return export.daemon, nil
}

// leave removes a session that has ended.
func (s *Server) leave(token storage.Token, session io.Closer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if export := s.exports[token]; export != nil {
		delete(export.sessions, session)
	}
}

// Revoke returns nil when no session with that token or a lower one can change the disks any more, and there will be
// none, not even after a restart. Errors: a failure to record that, or the context's cause. Then it must be repeated.
func (s *Server) Revoke(ctx context.Context, upTo storage.Token) error {
	daemons, err := s.bar(upTo)
	if err != nil {
		return err
	}
	if err := awaitEnd(ctx, daemons); err != nil {
		return fmt.Errorf("revoking tokens up to %d: %w", upTo, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range daemons {
		delete(s.exports, d.token)
	}
	return nil
}

// bar records that tokens are revoked, cuts the sessions, and returns the daemons to wait for. These may belong to an
// earlier call that did not wait until they had terminated.
func (s *Server) bar(upTo storage.Token) ([]*daemon, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if upTo == 0 {
		return nil, storage.ErrNoToken
	}
	if upTo > s.record.Revoked {
		next := s.record
		next.Revoked = upTo
		if err := s.store(next); err != nil {
			return nil, err
		}
		s.log.Info("revoked tokens", "upTo", upTo)
	}
	var daemons []*daemon
	for token, export := range s.exports {
		if token <= s.record.Revoked {
			export.cut()
			daemons = append(daemons, export.daemon)
		}
	}
	return daemons, nil
}

// cut cuts the sessions and kills their daemon, without waiting.
func (e *export) cut() {
	e.daemon.kill()
	for session := range e.sessions {
		_ = session.Close()
	}
}

func awaitEnd(ctx context.Context, daemons []*daemon) error {
	for _, d := range daemons {
		select {
		case <-d.ended:
		case <-ctx.Done():
			return fmt.Errorf("a storage daemon does not terminate: %w", context.Cause(ctx))
		}
	}
	return nil
}

// Close ends all sessions, and waits until the daemons have terminated.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	var daemons []*daemon
	for _, export := range s.exports {
		export.cut()
		daemons = append(daemons, export.daemon)
	}
	s.mu.Unlock()
	err := awaitEnd(context.Background(), daemons)
	s.release()
	return err
}
