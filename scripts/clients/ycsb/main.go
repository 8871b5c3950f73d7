// YCSB: runs a core workload of go-ycsb by its Redis driver against the server at a port of this machine.
//
//	ycsb WORKLOAD string|hash PORT
package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/magiconair/properties"
	"github.com/pingcap/go-ycsb/pkg/client"
	"github.com/pingcap/go-ycsb/pkg/measurement"
	"github.com/pingcap/go-ycsb/pkg/prop"
	_ "github.com/pingcap/go-ycsb/pkg/workload"
	"github.com/pingcap/go-ycsb/pkg/ycsb"

	_ "github.com/pingcap/go-ycsb/db/redis"
)

// Shares of reads, updates, inserts, scans and changes by what is there, and how keys are drawn.
var workloads = map[string]string{
	"a": "0.5 0.5 0 0 0 zipfian",
	"b": "0.95 0.05 0 0 0 zipfian",
	"c": "1 0 0 0 0 zipfian",
	"d": "0.95 0 0.05 0 0 latest",
	"f": "0.5 0 0 0 0.5 zipfian",
}

func run(p *properties.Properties, load bool) {
	p.Set(prop.DoTransactions, fmt.Sprint(!load))
	// A run also draws the key behind the last one, as if it was there.
	p.Set(prop.RecordCount, "2000")
	if load {
		p.Set(prop.RecordCount, "2001")
	}
	measurement.InitMeasure(p)
	workload, err := ycsb.GetWorkloadCreator("core").Create(p)
	check(err)
	db, err := ycsb.GetDBCreator("redis").Create(p)
	check(err)
	defer db.Close()
	client.NewClient(p, workload, client.DbWrapper{DB: db}).Run(context.Background())
	var told bytes.Buffer
	output := os.Stdout
	reader, writer, err := os.Pipe()
	check(err)
	os.Stdout = writer
	measurement.Summary()
	writer.Close()
	os.Stdout = output
	_, err = told.ReadFrom(reader)
	check(err)
	fmt.Print(told.String())
	if strings.Contains(told.String(), "_ERROR") {
		check(fmt.Errorf("operations failed"))
	}
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "ycsb:", err)
		os.Exit(1)
	}
}

func main() {
	if len(os.Args) != 4 || workloads[os.Args[1]] == "" {
		check(fmt.Errorf("usage: ycsb a|b|c|d|f string|hash PORT"))
	}
	// Strings and hashes have the same keys.
	database := "0"
	if os.Args[2] == "hash" {
		database = "1"
	}
	shares := strings.Fields(workloads[os.Args[1]])
	p := properties.NewProperties()
	for name, value := range map[string]string{
		"redis.addr": "127.0.0.1:" + os.Args[3], "redis.datatype": os.Args[2], "redis.db": database,
		"operationcount": "5000", "threadcount": "8", "silence": "true",
		"readproportion": shares[0], "updateproportion": shares[1], "insertproportion": shares[2],
		"scanproportion": shares[3], "readmodifywriteproportion": shares[4], "requestdistribution": shares[5],
	} {
		p.Set(name, value)
	}
	run(p, true)
	run(p, false)
}
