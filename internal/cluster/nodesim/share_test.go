package nodesim

import "testing"

func TestSharesAddUp(t *testing.T) {
	for _, count := range []int{1, 2, 7, 100} {
		for _, parts := range []int{1, 3, 16} {
			sum, last := 0, count
			for i := range parts {
				part := share(count, i, parts)
				if part > last {
					t.Errorf("part %d of %d of %d is %d, more than %d before", i, parts, count, part, last)
				}
				sum, last = sum+part, part
			}
			if sum != count {
				t.Errorf("%d parts of %d add up to %d", parts, count, sum)
			}
		}
	}
}
