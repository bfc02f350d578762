import com.sun.net.httpserver.HttpServer;
import java.net.InetSocketAddress;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicLong;

/** An HTTP server that counts, beside a thread that allocates. Counter PORT. */
public class Counter {
    static byte[] kept;

    public static void main(String[] words) throws Exception {
        AtomicLong count = new AtomicLong();
        HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", Integer.parseInt(words[0])), 0);
        server.createContext("/", exchange -> {
            byte[] body = Long.toString(count.incrementAndGet()).getBytes();
            exchange.sendResponseHeaders(200, body.length);
            exchange.getResponseBody().write(body);
            exchange.close();
        });
        server.setExecutor(Executors.newCachedThreadPool());
        server.start();
        for (;;) {
            kept = new byte[1 << 18];
            Thread.sleep(5);
        }
    }
}
