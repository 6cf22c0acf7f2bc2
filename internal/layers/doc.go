// Package layers checks the imports of all packages.
//
// The table in rules_test.go lists what each directory may import. The test fails for a package without a row, so every new
// directory must be assigned to a layer. The package contains only tests.
package layers
