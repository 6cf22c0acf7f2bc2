// Package process changes with how a process is started that outlives its starter and
// is found again.
//
// A process has a folder. In it lie a record of its start and a lock. The lock is taken
// before the process is made, and the process inherits it: the kernel holds it for as
// long as the process, or any process that came from it, lives. So whoever comes later,
// after whatever crash, knows without doubt
//
//   - that no process was ever started: there is no record;
//   - that all of them are gone: the lock is free;
//   - which ones live: those that have the lock open.
//
// The record is written once before the process is made, without its number, and once
// after: between the two a crash can lose the number, but not that there may be a
// process. It never leads to a second one.
package process
