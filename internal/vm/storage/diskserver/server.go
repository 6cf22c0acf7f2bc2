// Package diskserver serves the disks of one virtual machine to its hypervisors, and refuses those that ran it
// before.
//
// Each fencing token has a qemu-storage-daemon of its own, which exports the disks by NBD on a unix socket. Revoking a token
// kills its daemon and waits for its end, so nothing that was sent before arrives later. What was revoked is remembered
// in a file beside the first disk.
//
// Hypervisors have sessions through TLS, each with one daemon: that of its token, which the VM controller has opened to the
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

// Disk is a disk that is served, a file of raw format.
type Disk struct {
	// Name is that of the NBD export. No two are the same. Required.
	Name string
	// Path of the file, which exists. Required. Beside it is its lock, PATH.lock, and beside that of the first disk is the
	// record of tokens: PATH.fence and, with room for the next one, PATH.fence.next.
	Path string
}

// Config is what a server serves.
type Config struct {
	// Disks of the virtual machine, at least one.
	Disks []Disk
	// Run is the folder for sockets, which no one else may open. It exists. Required.
	Run string
	// Locks are those of the disks, which the caller has, and releases after Close. Nil: New takes them.
	Locks []*disk.Lock
	// Grow makes disks as large as is wanted, and returns the sizes of all, in bytes. The keys are the names of data disks;
	// the root disk's is empty. Daemons that run serve the sizes that they have begun with. Nil: the disks do not grow.
	Grow func(wanted map[string]uint64) (map[string]uint64, error)
	// Program is the storage daemon, a path or a name in PATH. Empty: DefaultProgram.
	Program string
	// Log is the logger. Nil: none.
	Log *slog.Logger

	boot string // empty: bootID
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

// export is what was opened. It stays until its daemon has ended.
type export struct {
	pod    string
	daemon *daemon
	// sessions are those to cut.
	sessions map[io.Closer]struct{}
}

// New locks the disks, and reads what was revoked. Nothing is open yet. The server must be closed. Errors: disk.ErrLocked
// as long as a daemon of a process before lives, or another process has a disk.
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

// take takes what the server needs.
func (s *Server) take() (err error) {
	if err := s.lock(); err != nil {
		return err
	}
	if s.folder, err = os.OpenFile(s.config.Run, unix.O_PATH|unix.O_DIRECTORY, 0); err != nil {
		return fmt.Errorf("opening the folder of sockets: %w", err)
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

// remember reads the record, and revokes what was open when the host's kernel ended.
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
		s.log.Warn("the host has started anew: tokens are revoked that were in use", "upTo", next.Revoked)
		return s.store(next)
	}
	return reserve(s.recordPath())
}

// store has the record changed when that is durable.
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

// lockFiles are inherited by the daemons, so that the disks are locked until the last one has ended.
func (s *Server) lockFiles() []*os.File {
	var files []*os.File
	for _, lock := range slices.Concat(s.config.Locks, s.locks) {
		files = append(files, lock.File())
	}
	return files
}

// maxSessions is how many sessions there are with one token, which is far more than the disks of a virtual machine.
const maxSessions = 64

// errTooMany means that a token has maxSessions.
var errTooMany = errors.New("there are too many sessions with this fencing token")

// errClosed means that the server ends.
var errClosed = errors.New("the disk server ends")

// Open lets the hypervisor in a Pod attach the disks with a token. It returns when the disks are served. Errors:
// those of storage.Volume.
func (s *Server) Open(ctx context.Context, token storage.Token, pod string) error {
	daemon, err := s.admit(token, pod)
	if err != nil {
		return err
	}
	return daemon.awaitReady(ctx)
}

// admit has a daemon for the token, which may not be ready.
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

// join notes a session that is to be cut when the token is revoked, and returns the token's daemon. Errors: ErrRevoked,
// ErrNotOpen, as for a token of another Pod, or errTooMany.
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

// leave forgets a session that has ended.
func (s *Server) leave(token storage.Token, session io.Closer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if export := s.exports[token]; export != nil {
		delete(export.sessions, session)
	}
}

// Revoke returns nil when no session with that token or a lower one can change the disks any more, and there will be none,
// also not after a restart. Errors: that it could not be stored, or the context's cause. Then it must be repeated.
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

// bar stores that tokens are revoked, cuts the sessions, and returns the daemons whose end is to be waited for. They may be
// of a call before that did not see their end.
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
		s.log.Info("tokens are revoked", "upTo", upTo)
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

// cut ends the sessions and their daemon, and waits for nothing.
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
			return fmt.Errorf("a storage daemon does not end: %w", context.Cause(ctx))
		}
	}
	return nil
}

// Close ends all sessions, and waits for the end of the daemons.
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
