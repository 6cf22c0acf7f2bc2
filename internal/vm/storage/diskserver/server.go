// Package diskserver serves the disks of one virtual machine to its hypervisors, and excludes hypervisors that ran
// the VM earlier.
//
// Each fencing token has its own qemu-storage-daemon, which exports the disks by NBD on a Unix socket. Revoking a
// token kills its daemon and waits until it has terminated, so a write that was sent earlier cannot arrive later.
// Revoked tokens are recorded in a file next to the first disk.
//
// Each hypervisor has TLS sessions with the daemon of its token, which the VM controller has opened for the
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
	// Path is the path of an existing file. Required. The disk's lock, PATH.lock, is next to it. The record of
	// tokens is next to the first disk: PATH.fence, and PATH.fence.next, which reserves space for the next record.
	Path string
}

// Config is the configuration of New.
type Config struct {
	// Disks are the disks of the virtual machine. At least one is required.
	Disks []Disk
	// Run is an existing directory for sockets to which no other user has access. Required.
	Run string
	// Locks are the locks of the disks. The caller holds them and releases them after Close. If nil, New acquires
	// them.
	Locks []*disk.Lock
	// Grow enlarges disks to the desired sizes in bytes and returns the sizes of all disks. The keys are the names
	// of data disks; the empty key is the root disk. Running daemons keep serving the sizes with which they
	// started. If nil, the disks cannot grow.
	Grow func(sizes map[string]uint64) (map[string]uint64, error)
	// Program is the storage daemon: a path, or a name in PATH. The default is DefaultProgram.
	Program string
	// Log is the logger. If nil, nothing is logged.
	Log *slog.Logger

	boot string // if empty, bootID is used
}

// Server owns the disks of one virtual machine. It is safe for concurrent use.
type Server struct {
	config    Config
	log       *slog.Logger
	directory *os.File
	locks     []*disk.Lock

	mu      sync.Mutex
	record  record
	exports map[storage.Token]*export
	closed  bool
}

// export is an opened token. It is kept until its daemon has terminated.
type export struct {
	pod    string
	daemon *daemon
	// sessions are closed when the token is revoked.
	sessions map[io.Closer]struct{}
}

// New locks the disks and reads which tokens are revoked. No token is open yet. Call Close when done. New returns
// disk.ErrLocked while another process, such as a daemon of an earlier server, holds a disk.
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
	if s.directory, err = os.OpenFile(s.config.Run, unix.O_PATH|unix.O_DIRECTORY, 0); err != nil {
		return fmt.Errorf("opening the directory of sockets: %w", err)
	}
	return s.remember()
}

// lock locks the disks, unless the caller has already locked them.
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

// remember reads the record. If the host has rebooted since, it revokes the tokens that were open.
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
		s.log.Warn("the host has rebooted; revoked the tokens that were in use", "upTo", next.Revoked)
		return s.store(next)
	}
	return reserve(s.recordPath())
}

// store replaces the record, once the new one is durable.
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
	if s.directory != nil {
		_ = s.directory.Close()
	}
}

func (s *Server) recordPath() string { return s.config.Disks[0].Path + recordSuffix }

// lockFiles returns the files of the locks. The daemons inherit them, so the disks stay locked until the last
// daemon has terminated.
func (s *Server) lockFiles() []*os.File {
	var files []*os.File
	for _, lock := range slices.Concat(s.config.Locks, s.locks) {
		files = append(files, lock.File())
	}
	return files
}

// maxSessions is the maximum number of sessions for one token. It is far above the number of disks of a virtual
// machine.
const maxSessions = 64

// errTooMany means that a token already has maxSessions sessions.
var errTooMany = errors.New("too many sessions with this fencing token")

// errClosed means that the server is closed.
var errClosed = errors.New("the disk server is shutting down")

// Open lets the hypervisor in a Pod attach the disks with a token. It returns once the disks are served. Errors:
// those of storage.Volume.
func (s *Server) Open(ctx context.Context, token storage.Token, pod string) error {
	daemon, err := s.admit(token, pod)
	if err != nil {
		return err
	}
	return daemon.awaitReady(ctx)
}

// admit returns the daemon for the token, which may not be ready yet.
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
	s.log.Info("opened the disks", "token", token, "pod", pod)
	return daemon, nil
}

// join adds a session, which is cut when the token is revoked, and returns the token's daemon. Errors: ErrRevoked;
// ErrNotOpen, also if the token belongs to another Pod; or errTooMany.
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

// Revoke returns nil once no session with that token or a lower one can change the disks, and no such session can
// begin, even after a restart. It returns an error if the revocation cannot be recorded or the context is
// canceled. The caller must then call Revoke again.
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

// bar records that tokens are revoked, cuts their sessions, and returns the daemons to wait for. Some of them may
// belong to an earlier call that did not wait for their termination.
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

// cut closes the sessions and kills their daemon, without waiting.
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
			return fmt.Errorf("waiting for a storage daemon to terminate: %w", context.Cause(ctx))
		}
	}
	return nil
}

// Close closes all sessions and waits until the daemons have terminated.
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
