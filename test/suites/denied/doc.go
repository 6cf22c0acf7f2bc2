// Package denied tests what controllers do when an admission webhook denies all that they write.
package denied
