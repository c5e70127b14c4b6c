package top

import (
	"context"
	"errors"
	"io"
	"time"

	tea "charm.land/bubbletea/v2"
)

// Live draws a frame at every interval until the user presses q, Esc or Ctrl-C, or ctx is done.
func Live(ctx context.Context, in io.Reader, out io.Writer, interval time.Duration, frame func() Frame) error {
	program := tea.NewProgram(model{frame: frame, interval: interval, now: frame()},
		tea.WithContext(ctx), tea.WithInput(in), tea.WithOutput(out), tea.WithoutSignalHandler())
	_, err := program.Run()
	if errors.Is(err, tea.ErrProgramKilled) && ctx.Err() != nil {
		return nil // The user pressed Ctrl-C, which is not an error.
	}
	return err
}

// model implements [tea.Model].
type model struct {
	frame         func() Frame
	interval      time.Duration
	now           Frame
	width, height int
}

type tick struct{}

func (m model) wait() tea.Cmd {
	return tea.Tick(m.interval, func(time.Time) tea.Msg { return tick{} })
}

// Init implements [tea.Model]. It schedules the first tick.
func (m model) Init() tea.Cmd { return m.wait() }

// Update implements [tea.Model]. It handles resizes, keys and ticks.
func (m model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case tea.KeyPressMsg:
		switch msg.String() {
		case "q", "ctrl+c", "esc":
			return m, tea.Quit
		}
	case tick:
		m.now = m.frame()
		return m, m.wait()
	}
	return m, nil
}

// View implements [tea.Model]. It renders the current frame on the alternate screen.
func (m model) View() tea.View {
	view := tea.NewView("")
	if m.width > 0 {
		view.SetContent(Render(m.now, m.width, m.height))
	}
	view.AltScreen = true
	return view
}
