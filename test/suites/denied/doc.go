// Package denied tests the behavior of controllers when an admission webhook denies all their writes.
package denied
