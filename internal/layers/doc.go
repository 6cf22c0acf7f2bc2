// Package layers checks which package imports which.
//
// The table in rules_test.go says what each folder may import; a package that is in no row fails
// the test, so that a new folder is placed on purpose. There is nothing to import here.
package layers
