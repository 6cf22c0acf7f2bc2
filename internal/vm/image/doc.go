// Package image downloads, verifies and unpacks disk images and boot files.
//
// [WriteDisk] makes the root disk of a new VM out of an image, [Fetch] brings a kernel
// or an initial RAM disk as it is. Both write beside the file that was asked for, and
// give it its name only when all of its content is there, checked and on stable
// storage: a file of that name is complete, also after a crash at any moment. What a
// crash left behind is written over by the next attempt.
//
// Content is not trusted. It is told from its first bytes, never from the URL's end;
// an image that refers to other files, or is larger than the disk, is refused; and the
// checksum, if there is one, is that of the bytes behind the URL.
//
// Failures that may pass are tried again for a while, going on where the last attempt
// ended if the server can do that. What remains is an [*Error] with a [Kind].
package image
