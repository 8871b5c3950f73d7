// Assertions of jedis and lettuce: Clients PORT.
import io.lettuce.core.ClientOptions;
import io.lettuce.core.KeyValue;
import io.lettuce.core.RedisClient;
import io.lettuce.core.ScanArgs;
import io.lettuce.core.ScanCursor;
import io.lettuce.core.RedisURI;
import io.lettuce.core.protocol.ProtocolVersion;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.Pipeline;
import redis.clients.jedis.RedisProtocol;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.params.ScanParams;
import redis.clients.jedis.params.SetParams;
import redis.clients.jedis.resps.ScanResult;

public class Clients {
    static void same(Object got, Object expected) {
        if (got == null ? expected != null : !got.equals(expected)) {
            throw new AssertionError(got + "; expected " + expected);
        }
    }

    static void jedis(int port, RedisProtocol protocol) {
        var config = DefaultJedisClientConfig.builder().database(1).protocol(protocol).build();
        try (Jedis jedis = new Jedis(new HostAndPort("127.0.0.1", port), config)) {
            same(jedis.ping(), "PONG");
            same(jedis.flushDB(), "OK");
            same(jedis.get("a"), null);
            same(jedis.set("a", "1"), "OK");
            same(jedis.set("a", "2", new SetParams().nx()), null);
            same(jedis.incrBy("a", 41), 42L);
            same(jedis.append("a", "!"), 3L);
            try {
                jedis.incr("a");
                throw new AssertionError("a text is no number");
            } catch (JedisDataException error) {
                same(error.getMessage(), "ERR value is not an integer or out of range");
            }
            same(jedis.mset("b", "1", "c", "2"), "OK");
            same(jedis.mget("b", "none", "c").toString(), "[1, null, 2]");
            same(jedis.getrange("a", 0, 1), "42");
            same(jedis.exists("a", "b", "none"), 2L);
            same(jedis.del("a", "b", "c", "none"), 3L);
            Pipeline pipeline = jedis.pipelined();
            for (int number = 0; number < 500; number++) {
                pipeline.set(String.format("key:%04d", number), "" + number);
            }
            for (Object reply : pipeline.syncAndReturnAll()) {
                same(reply, "OK");
            }
            Set<String> found = new HashSet<>();
            String cursor = ScanParams.SCAN_POINTER_START;
            do {
                ScanResult<String> part = jedis.scan(cursor, new ScanParams().match("key:*").count(17));
                found.addAll(part.getResult());
                cursor = part.getCursor();
            } while (!cursor.equals(ScanParams.SCAN_POINTER_START));
            same(found.size(), 500);
            same(jedis.dbSize(), 500L);
            same(jedis.flushDB(), "OK");
        }
    }

    static void lettuce(int port, ProtocolVersion protocol) {
        RedisClient client = RedisClient.create(RedisURI.builder().withHost("127.0.0.1").withPort(port).withDatabase(1).build());
        client.setOptions(ClientOptions.builder().protocolVersion(protocol).build());
        var commands = client.connect().sync();
        same(commands.ping(), "PONG");
        same(commands.set("l", "1"), "OK");
        same(commands.incr("l"), 2L);
        same(commands.mget("l", "none").get(1), KeyValue.empty("none"));
        for (int number = 0; number < 100; number++) {
            same(commands.set("l" + number, "x"), "OK");
        }
        Set<String> found = new HashSet<>();
        ScanCursor cursor = ScanCursor.INITIAL;
        do {
            var part = commands.scan(cursor, ScanArgs.Builder.matches("l*").limit(7));
            found.addAll(part.getKeys());
            cursor = part;
        } while (!cursor.isFinished());
        same(found.size(), 101);
        same(commands.del(found.toArray(new String[0])), 101L);
        client.shutdown();
    }

    public static void main(String[] args) {
        int port = Integer.parseInt(args[0]);
        for (RedisProtocol protocol : List.of(RedisProtocol.RESP2, RedisProtocol.RESP3)) {
            jedis(port, protocol);
        }
        for (ProtocolVersion protocol : List.of(ProtocolVersion.RESP2, ProtocolVersion.RESP3)) {
            lettuce(port, protocol);
        }
    }
}
