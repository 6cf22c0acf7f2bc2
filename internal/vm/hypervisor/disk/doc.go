// Package disk creates root disks and locks them for one process.
//
// A disk that exists is complete: it is made under another name and appears by a
// rename. So whoever finds it never has to ask whether it may be written again.
package disk
