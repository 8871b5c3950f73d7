// Assertions of go-redis and rueidis: clients PORT.
package main

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
)

var ctx = context.Background()

func check(is bool, what string, args ...any) {
	if !is {
		fmt.Fprintf(os.Stderr, what+"\n", args...)
		os.Exit(1)
	}
}

func same[T comparable](got T, err error, want T, what string) {
	check(err == nil && got == want, "%s: %v, %v; expected %v", what, got, err, want)
}

func goRedis(port string, protocol int) {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + port, DB: 1, Protocol: protocol})
	defer client.Close()
	check(client.FlushDB(ctx).Err() == nil, "FLUSHDB")
	_, err := client.Get(ctx, "a").Result()
	check(err == redis.Nil, "GET of nothing: %v", err)
	ok, err := client.Set(ctx, "a", "x\r\n\x00\xff", 0).Result()
	same(ok, err, "OK", "SET")
	value, err := client.Get(ctx, "a").Result()
	same(value, err, "x\r\n\x00\xff", "GET")
	isNew, err := client.SetNX(ctx, "a", "1", 0).Result()
	same(isNew, err, false, "SETNX")
	before, err := client.GetSet(ctx, "a", "7").Result()
	same(before, err, "x\r\n\x00\xff", "GETSET")
	count, err := client.IncrBy(ctx, "a", 35).Result()
	same(count, err, 42, "INCRBY")
	count, err = client.Append(ctx, "a", "!").Result()
	same(count, err, 3, "APPEND")
	err = client.Incr(ctx, "a").Err()
	check(err != nil && strings.Contains(err.Error(), "not an integer"), "INCR of a text: %v", err)
	check(client.MSet(ctx, "b", 1, "c", 2).Err() == nil, "MSET")
	values, err := client.MGet(ctx, "b", "none", "c").Result()
	check(err == nil && values[0] == "1" && values[1] == nil && values[2] == "2", "MGET: %v %v", values, err)
	count, err = client.Del(ctx, "a", "b", "c", "none").Result()
	same(count, err, 3, "DEL")
	_, err = client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for number := range 500 {
			pipe.Set(ctx, fmt.Sprintf("key:%04d", number), number, 0)
		}
		return nil
	})
	check(err == nil, "a pipeline: %v", err)
	found := map[string]bool{}
	keys := client.Scan(ctx, 0, "key:*", 17).Iterator()
	for keys.Next(ctx) {
		found[keys.Val()] = true
	}
	check(keys.Err() == nil && len(found) == 500, "SCAN: %d, %v", len(found), keys.Err())
	count, err = client.DBSize(ctx).Result()
	same(count, err, 500, "DBSIZE")
	check(client.FlushDB(ctx).Err() == nil, "FLUSHDB")
}

func rueidisClient(port string, alwaysResp2 bool) {
	client, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{"127.0.0.1:" + port}, DisableCache: true, AlwaysRESP2: alwaysResp2,
	})
	check(err == nil, "rueidis connects: %v", err)
	defer client.Close()
	do := func(words ...string) rueidis.RedisResult {
		return client.Do(ctx, client.B().Arbitrary(words...).Build())
	}
	ok, err := do("SET", "r", "1").ToString()
	same(ok, err, "OK", "SET")
	count, err := do("INCR", "r").ToInt64()
	same(count, err, 2, "INCR")
	check(rueidis.IsRedisNil(do("GET", "none").Error()), "GET of nothing")
	var commands rueidis.Commands
	for number := range 200 {
		commands = append(commands, client.B().Set().Key(fmt.Sprint("r", number)).Value("v").Build())
	}
	for _, reply := range client.DoMulti(ctx, commands...) {
		check(reply.Error() == nil, "a pipeline: %v", reply.Error())
	}
	values, err := rueidis.MGet(client, ctx, []string{"r", "r7", "none"})
	check(err == nil && len(values) == 3, "MGET: %v", err)
	count, err = do("DEL", "r", "r7").ToInt64()
	same(count, err, 2, "DEL")
}

func main() {
	for _, protocol := range []int{2, 3} {
		goRedis(os.Args[1], protocol)
		rueidisClient(os.Args[1], protocol == 2)
	}
}
