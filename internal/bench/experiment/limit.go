package experiment

// Limit is what a figure must meet, and what it should meet.
type Limit struct {
	Name, Unit string
	Must, Aim  float64
	// AtLeast is true if the limits are lower limits.
	AtLeast bool
}

// Judge appends the verdicts on a figure: the limit that it must meet, and the aim. operations is the number of
// operations behind the figure. worst names the case with this figure, if there are several. Limits are stated for the
// sizes of medium scale, so below it a figure need not meet them.
func (r *Run) Judge(l Limit, measured float64, operations int, worst string) {
	verdict := Verdict{Measured: measured, Unit: l.Unit, Operations: int64(operations), AtLeast: l.AtLeast, Worst: worst}
	must, aim := verdict, verdict
	must.Name, must.Limit, must.Must = l.Name+", must", l.Must, r.Scale.Factor >= 1
	aim.Name, aim.Limit = l.Name+", aim", l.Aim
	r.Result.Verdicts = append(r.Result.Verdicts, must.Judged(), aim.Judged())
}
