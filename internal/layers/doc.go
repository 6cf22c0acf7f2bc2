// Package layers changes when the architecture does: its tests hold the table of who
// may import whom, and refuse a package that has no place in it.
//
// The table is in rules_test.go. A new folder is placed by adding it there, on
// purpose. There is nothing to import here.
package layers
