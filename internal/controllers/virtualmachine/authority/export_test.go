package authority

// For tests that also know what is asked of servers of disks.
var (
	LeaseAfter = leaseAfter
	PassLease  = passLease
	NextToken  = nextToken
)
