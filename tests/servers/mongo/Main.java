// A server that speaks the protocol of MongoDB, for tests: java -cp CLASSPATH Main.java PORT. It says that it is 4.4: the driver asks for that
// much, and what it asks with (OP_MSG, find, hello) is there.
import de.bwaldvogel.mongo.MongoServer;
import de.bwaldvogel.mongo.MongoVersion;
import de.bwaldvogel.mongo.backend.memory.MemoryBackend;
import java.util.List;

public class Main {
    public static void main(String[] arguments) throws Exception {
        MemoryBackend backend = new MemoryBackend();
        backend.version(new MongoVersion() {
            public List<Integer> getVersionArray() { return List.of(4, 4, 0); }
            public int getWireVersion() { return 9; }
        });
        new MongoServer(backend).bind("127.0.0.1", Integer.parseInt(arguments[0]));
        Thread.currentThread().join();
    }
}
