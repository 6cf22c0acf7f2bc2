package messages

import "fmt"

// integer is what machines are counted in.
type integer interface{ ~int | ~int32 | ~int64 }

// Machines is a number of machines: "1 machine", "2 machines".
func Machines[N integer](n N) string {
	if n == 1 {
		return "1 machine"
	}
	return fmt.Sprintf("%d machines", n)
}

// Are is the verb after a number.
func Are[N integer](n N) string {
	if n == 1 {
		return "is"
	}
	return "are"
}

// Have is the verb after a number.
func Have[N integer](n N) string {
	if n == 1 {
		return "has"
	}
	return "have"
}
