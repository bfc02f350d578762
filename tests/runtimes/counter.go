// An HTTP server that counts, beside goroutines that allocate. counter PORT.
package main

import (
	"fmt"
	"net/http"
	"os"
	"sync/atomic"
	"time"
)

func main() {
	var count atomic.Int64
	for range 4 {
		go func() {
			for {
				_ = fmt.Sprint(make([]byte, 1<<12))
				time.Sleep(5 * time.Millisecond)
			}
		}()
	}
	http.HandleFunc("/", func(answer http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(answer, count.Add(1))
	})
	panic(http.ListenAndServe("127.0.0.1:"+os.Args[1], nil))
}
