// Package disk changes when the way in which a root disk comes to be, and is kept for
// one process, does.
//
// A disk that exists is complete: it is made under another name and appears by a
// rename. So whoever finds it never has to ask whether it may be written again.
package disk
