package main

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"
)

const patience = 30 * time.Second

// client has one connection, which it uses for one request after the other as long as it stays open.
type client struct {
	address string
	conn    net.Conn
	lines   *bufio.Reader
}

func (c *client) close() {
	if c.conn != nil {
		c.conn.Close()
		c.conn = nil
	}
}

func (c *client) send(p plan) error {
	if c.conn == nil {
		conn, err := net.DialTimeout("tcp", c.address, patience)
		if err != nil {
			return err
		}
		c.conn, c.lines = conn, bufio.NewReaderSize(conn, 8192)
	}
	c.conn.SetDeadline(time.Now().Add(patience))
	_, err := io.WriteString(c.conn, p.request(c.address))
	return err
}

// leave goes in the middle: in half of the cases with a reset, as a process that was killed does.
func (c *client) leave(p plan) {
	if p.after > 0 { // an error in place of the answer may be shorter than that
		c.conn.SetReadDeadline(time.Now().Add(time.Second))
		io.CopyN(io.Discard, c.lines, int64(min(p.after, len(p.answer()))))
	}
	if p.id%2 == 0 {
		c.conn.(*net.TCPConn).SetLinger(0)
	}
	c.close()
}

// ask sends one request and says how it ended; the status where there was one.
func (c *client) ask(p plan) (outcome, int) {
	if err := c.send(p); err != nil {
		c.close()
		return dropped, 0
	}
	if p.leaves {
		c.leave(p)
		return left, 0
	}
	answer, err := http.ReadResponse(c.lines, &http.Request{Method: "POST"})
	if err != nil {
		c.close()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return late, 0
		}
		return dropped, 0
	}
	body, err := io.ReadAll(answer.Body)
	if err != nil || answer.Close {
		defer c.close()
	}
	return judge(p, answer.StatusCode, string(body), err), answer.StatusCode
}

func judge(p plan, status int, body string, err error) outcome {
	right := p.answer()
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return late
	case status != 200:
		if err == nil && strings.Contains(body, `"error"`) {
			return refused
		}
		return wrong
	case body == right && err == nil:
		return whole
	case p.stream && strings.Contains(body, "data: [DONE]"):
		return forged
	}
	// What came before the end must be the beginning of the right answer.
	event := strings.Index(body, `{"error"`)
	if event < 0 {
		if err != nil && strings.HasPrefix(right, body) && !p.stream {
			return cut
		}
		return wrong
	}
	came := ""
	if end := strings.LastIndex(body[:event], "\n\n"); end >= 0 {
		came = body[:end+2]
	}
	if p.stream && strings.HasPrefix(right, came) {
		return endedByErr
	}
	return wrong
}
