// Package process starts processes that outlive their parent, and finds them again.
//
// A process has a folder with a record of its start and a lock. The lock is taken before
// the process is started, and the process inherits it: the kernel holds the lock for as
// long as the process or one of its descendants lives. So a later parent knows, after
// any crash,
//
//   - that no process was ever started: there is no record;
//   - that all of them are gone: the lock is free;
//   - which ones live: those that have the lock open.
//
// The record is written once before the process is made, without its number, and once
// after: between the two a crash can lose the number, but not that there may be a
// process. It never leads to a second one.
package process
