// A daemon behind shims and its shim, as Go programs are: HTTP with net/http on a unix socket, gRPC with grpc-go on loopback TCP.
// Requests and log are those of ../daemon.py. A request is served by a goroutine, and which thread that is on is
// decided by Go's scheduler, anew after each wait.
//
// Usage: daemon PLACE LOG, which prints where it listens; shim PLACE STEPS, with CNI_CONTAINERID in its environment. PLACE is the path of
// a unix socket, or a port.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

const method = "/sandglass.test.Daemon/Do"

// raw is the codec of a service whose messages are the bytes that they are.
type raw struct{}

func (raw) Name() string                        { return "raw" }
func (raw) Marshal(value any) ([]byte, error)   { return *value.(*[]byte), nil }
func (raw) Unmarshal(data []byte, to any) error { *to.(*[]byte) = bytes.Clone(data); return nil }

type request struct {
	ID    string            `json:"id"`
	Steps []json.RawMessage `json:"steps"`
}

type line struct {
	ID       string `json:"id"`
	Received int64  `json:"received"`
	Answered int64  `json:"answered"`
	done
}

// done is what was done for a request: processes that ran, and locks with the times since when they were wanted and had.
type done struct {
	Pids   []int    `json:"pids"`
	Locked [][3]any `json:"locked"`
}

type daemon struct {
	lock sync.Mutex
	into *os.File
}

func now() int64 {
	var time unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &time); err != nil {
		log.Fatal(err)
	}
	return time.Nano()
}

// locked has a lock on a file for a moment, once nobody else has it.
func locked(path string) ([3]any, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return [3]any{}, err
	}
	defer file.Close()
	wanted := now()
	err = unix.Flock(int(file.Fd()), unix.LOCK_EX)
	return [3]any{path, wanted, now()}, err
}

// work does what a request says. Each step is a command, seconds to wait, or a file to lock.
func work(steps []json.RawMessage) (did done, err error) {
	did = done{Pids: []int{}, Locked: [][3]any{}}
	for _, step := range steps {
		var seconds float64
		if json.Unmarshal(step, &seconds) == nil {
			time.Sleep(time.Duration(seconds * float64(time.Second)))
			continue
		}
		var file struct{ Lock string }
		if json.Unmarshal(step, &file) == nil {
			lock, err := locked(file.Lock)
			if err != nil {
				return did, err
			}
			did.Locked = append(did.Locked, lock)
			continue
		}
		var words []string
		if err := json.Unmarshal(step, &words); err != nil {
			return did, err
		}
		command := exec.Command(words[0], words[1:]...)
		if err := command.Start(); err != nil {
			return did, err
		}
		did.Pids = append(did.Pids, command.Process.Pid)
		if err := command.Wait(); err != nil {
			return did, err
		}
	}
	return did, nil
}

// serve answers a request with answer, and logs it afterwards.
func (d *daemon) serve(body []byte, received int64, answer func() error) error {
	var wanted request
	if err := json.Unmarshal(body, &wanted); err != nil {
		return err
	}
	did, err := work(wanted.Steps)
	if err != nil {
		return err
	}
	served := line{ID: wanted.ID, Received: received, Answered: now(), done: did}
	if err := answer(); err != nil {
		return err
	}
	text, err := json.Marshal(served)
	if err != nil {
		return err
	}
	d.lock.Lock()
	defer d.lock.Unlock()
	_, err = fmt.Fprintf(d.into, "%s\n", text)
	return err
}

func (d *daemon) ServeHTTP(writer http.ResponseWriter, incoming *http.Request) {
	received := now()
	body, err := io.ReadAll(incoming.Body)
	if err == nil {
		err = d.serve(body, received, func() error {
			writer.Header().Set("Content-Type", "application/json")
			if _, err := io.WriteString(writer, `{"result": "done"}`); err != nil {
				return err
			}
			return http.NewResponseController(writer).Flush()
		})
	}
	if err != nil {
		log.Print(err)
		http.Error(writer, err.Error(), http.StatusInternalServerError)
	}
}

func (d *daemon) serveStream(_ any, stream grpc.ServerStream) error {
	received := now()
	var body []byte
	if err := stream.RecvMsg(&body); err != nil {
		return err
	}
	return d.serve(body, received, func() error {
		answer := []byte("done")
		return stream.SendMsg(&answer)
	})
}

func serve(place, logPath string) error {
	into, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	d := &daemon{into: into}
	if strings.HasPrefix(place, "/") {
		listener, err := net.Listen("unix", place)
		if err != nil {
			return err
		}
		fmt.Println(place)
		return http.Serve(listener, d)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:"+place)
	if err != nil {
		return err
	}
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	server := grpc.NewServer(grpc.ForceServerCodec(raw{}), grpc.UnknownServiceHandler(d.serveStream))
	return server.Serve(listener)
}

func ask(place, steps string) error {
	body, err := json.Marshal(request{ID: os.Getenv("CNI_CONTAINERID"), Steps: stepsOf(steps)})
	if err != nil {
		return err
	}
	if !strings.HasPrefix(place, "/") {
		connection, err := grpc.NewClient("127.0.0.1:"+place, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultCallOptions(grpc.ForceCodec(raw{})))
		if err != nil {
			return err
		}
		defer connection.Close()
		var answer []byte
		return connection.Invoke(context.Background(), method, &body, &answer)
	}
	client := http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
		return net.Dial("unix", place)
	}}}
	answer, err := client.Post("http://localhost/endpoint", "application/json", bytes.NewReader(body))
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("the daemon answered %s", answer.Status)
	}
	return nil
}

func stepsOf(text string) (steps []json.RawMessage) {
	if err := json.Unmarshal([]byte(text), &steps); err != nil {
		log.Fatal(err)
	}
	return steps
}

func main() {
	if len(os.Args) != 4 {
		log.Fatal("usage: daemon PLACE LOG, or shim PLACE STEPS")
	}
	run := map[string]func(string, string) error{"daemon": serve, "shim": ask}[os.Args[1]]
	if run == nil {
		log.Fatalf("no such part: %s", os.Args[1])
	}
	if err := run(os.Args[2], os.Args[3]); err != nil {
		log.Fatal(err)
	}
}
