package tidegate;

import com.github.luben.zstd.Zstd;
import java.io.ByteArrayOutputStream;
import java.io.File;
import java.io.IOException;
import java.io.RandomAccessFile;
import java.net.URI;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.util.ShutdownHookManager;

/**
 * Ships Spark's event logs from a folder of the driver to an object store, where a file appears only when it is closed.
 *
 * In the store, a log looks as if Spark wrote it there: a folder `eventlog_v2_<app>` with the files
 * `events_<n>_<app>.zstd` and `appstatus_<app>`. Every few seconds, the newest of these files is put again, with what
 * has been added: whole lines, in zstd frames of their own. So it grows like a file on a disk, and readers go on where
 * they stopped. When it is large enough, the next one follows. A driver's file is deleted when all of it is read.
 *
 * What is left is shipped when the JVM ends, after Spark has closed the log: also on a failure and on SIGTERM.
 *
 * The launcher compiles this file in the driver with Janino: there are no lambdas in it and no type arguments.
 */
public final class EventLogShipper implements Runnable {
    private static final String ROLLING = "eventlog_v2_";
    private static final String IN_PROGRESS = ".inprogress";
    private static final int STEP_BYTES = 1 << 20;
    private static final int SMALLEST_PART_BYTES = 1 << 20;
    private static final int LARGEST_PART_BYTES = 8 << 20;
    private static final int PARTS = 100;
    private static final int ZSTD_LEVEL = 3;
    /** Spark's hooks have 40, and the one that closes all file systems has 10: the higher one is first. */
    private static final int AFTER_SPARKS_OWN_HOOKS = 20;
    private static final long LONGEST_END_SECONDS = 30;

    private final File from;
    private final Path to;
    private final FileSystem store;
    private final long millis;
    private final long backlogBytes;
    private final Map logs = new HashMap();
    private String complaint = "";

    private EventLogShipper(String from, String to, Configuration conf, long millis, long backlogBytes)
            throws IOException {
        this.from = new File(from);
        this.to = new Path(to);
        this.store = FileSystem.newInstance(this.to.toUri(), conf); // nobody else closes it
        this.millis = millis;
        this.backlogBytes = backlogBytes;
    }

    /** Ship all logs in the folder `from` until the JVM ends; of what cannot be shipped, keep `backlogBytes` a log. */
    public static EventLogShipper start(String from, String to, Configuration conf, long millis, long backlogBytes)
            throws IOException {
        EventLogShipper shipper = new EventLogShipper(from, to, conf, millis, backlogBytes);
        ShutdownHookManager.get().addShutdownHook(
            new AtEnd(shipper), AFTER_SPARKS_OWN_HOOKS, LONGEST_END_SECONDS, TimeUnit.SECONDS);
        Thread thread = new Thread(shipper, "tidegate-event-log");
        thread.setDaemon(true);
        thread.start();
        return shipper;
    }

    public void run() {
        try {
            while (true) {
                Thread.sleep(millis);
                ship();
            }
        } catch (InterruptedException ended) {
            Thread.currentThread().interrupt();
        }
    }

    /** Ship what has been added to all logs. What fails is tried again the next time. */
    public synchronized void ship() {
        String[] names = from.list();
        if (names == null) {
            return;
        }
        Arrays.sort(names);
        for (int number = 0; number < names.length; number++) {
            if (names[number].startsWith(ROLLING)) {
                ship(names[number]);
            }
        }
    }

    /** Return what is wrong; an empty text if the last try was successful. */
    public synchronized String complaint() {
        return complaint;
    }

    private void ship(String name) {
        Log log = (Log) logs.get(name);
        if (log == null) {
            log = new Log(new File(from, name), new Path(to, name));
            logs.put(name, log);
        }
        try {
            if (log.ship()) {
                logs.remove(name);
            }
            complaint = "";
        } catch (Exception failure) { // the user's program must go on, whatever the store says
            say("cannot ship the event log to " + log.target + " and will try again: " + firstLine(failure));
        }
    }

    private void say(String text) {
        if (!text.equals(complaint)) {
            System.err.println(Instant.now() + " tidegate launcher: " + text);
        }
        complaint = text;
    }

    private static String firstLine(Exception failure) {
        String text = failure.getMessage() == null ? "" : ": " + failure.getMessage();
        int end = text.indexOf('\n');
        return failure.getClass().getName() + (end < 0 ? text : text.substring(0, end));
    }

    /** The log of one application. */
    private final class Log {
        private final File folder;
        private final Path target;
        /** Which of the driver's files is being read, and how far. */
        private int reading = 0;
        private long offset = 0;
        /** The newest part, as it is in the store or should be. */
        private int number = 1;
        private ByteArrayOutputStream part = new ByteArrayOutputStream();
        private boolean changed = false;
        private boolean announced = false;
        private long shipped = 0;

        Log(File folder, Path target) {
            this.folder = folder;
            this.target = target;
        }

        /** Ship what has been added; return whether the log is complete in the store. */
        boolean ship() throws IOException {
            String[] status = named("appstatus_");
            if (status.length == 0) {
                return false; // Spark is still making the folder
            }
            boolean ended = !status[0].endsWith(IN_PROGRESS); // look first: Spark marks the end when all is written
            boolean full = fill();
            dropBacklog();
            if (!announced) {
                put(status[0], new byte[0]);
                announced = true;
            }
            for (; full; full = fill()) {
                put();
                part = new ByteArrayOutputStream();
                number++;
            }
            if (changed) {
                put();
            }
            if (ended) {
                put(status[0], new byte[0]);
                store.delete(new Path(target, status[0] + IN_PROGRESS), false);
                delete(folder);
            }
            return ended;
        }

        /** Add to the part what the driver's files have more; return whether the part is full. */
        private boolean fill() throws IOException {
            while (part.size() < Math.max(SMALLEST_PART_BYTES, Math.min(LARGEST_PART_BYTES, shipped / PARTS))) {
                TreeMap files = files(); // look first: when there is a newer file, the older one is complete
                if (!files.containsKey(Integer.valueOf(reading))) {
                    Object next = files.higherKey(Integer.valueOf(reading));
                    if (next == null) {
                        return false;
                    }
                    reading = ((Integer) next).intValue();
                    offset = 0;
                }
                File file = (File) files.get(Integer.valueOf(reading));
                byte[] lines = wholeLines(file);
                if (lines.length > 0) {
                    byte[] frame = Zstd.compress(lines, ZSTD_LEVEL);
                    part.write(frame);
                    offset += lines.length;
                    shipped += frame.length;
                    changed = true;
                } else if (files.higherKey(Integer.valueOf(reading)) != null) {
                    file.delete(); // the part has it all
                    reading++;
                    offset = 0;
                } else {
                    return false;
                }
            }
            return true;
        }

        private byte[] wholeLines(File file) throws IOException {
            RandomAccessFile input = new RandomAccessFile(file, "r");
            try {
                int length = (int) Math.min(STEP_BYTES, input.length() - offset);
                while (true) {
                    byte[] read = new byte[Math.max(0, length)];
                    input.seek(offset);
                    input.readFully(read);
                    int end = read.length;
                    while (end > 0 && read[end - 1] != '\n') {
                        end--;
                    }
                    long more = input.length() - offset - length;
                    if (end > 0 || more <= 0) {
                        return Arrays.copyOf(read, end);
                    }
                    length += (int) Math.min(more, STEP_BYTES); // a very long line
                }
            } finally {
                input.close();
            }
        }

        /** Put the part into the store. */
        private void put() throws IOException {
            String name = ((File) files().firstEntry().getValue()).getName();
            String application = name.substring(name.indexOf('_', name.indexOf('_') + 1));
            put("events_" + number + application + ".zstd", part.toByteArray());
            changed = false;
        }

        private void put(String name, byte[] content) throws IOException {
            FSDataOutputStreamBuilder builder = store.createFile(new Path(target, name));
            builder.overwrite(true);
            builder.recursive();
            builder.opt("fs.s3a.create.performance", true); // one request: nothing is looked up before
            FSDataOutputStream output = (FSDataOutputStream) builder.build();
            try {
                output.write(content);
            } catch (IOException failure) {
                output.abort(); // closing it would put half a part
                throw failure;
            }
            output.close();
        }

        /** Delete the oldest files if too much waits, but neither the one that is being read nor the newest. */
        private void dropBacklog() {
            TreeMap files = files();
            long bytes = 0;
            for (Object key = files.isEmpty() ? null : files.lastKey(); key != null; key = files.lowerKey(key)) {
                File file = (File) files.get(key);
                bytes += file.length();
                boolean between = ((Integer) key).intValue() > reading && key != files.lastKey();
                if (bytes > backlogBytes && between) {
                    say("the event log waits for " + target + ", and the oldest " + file.length() + " bytes are lost");
                    file.delete();
                }
            }
        }

        private TreeMap files() {
            TreeMap found = new TreeMap();
            String[] names = named("events_");
            for (int each = 0; each < names.length; each++) {
                found.put(Integer.valueOf(names[each].split("_")[1]), new File(folder, names[each]));
            }
            return found;
        }

        private String[] named(String prefix) {
            String[] names = folder.list();
            List found = new ArrayList();
            for (int each = 0; names != null && each < names.length; each++) {
                if (names[each].startsWith(prefix)) {
                    found.add(names[each]);
                }
            }
            return (String[]) found.toArray(new String[0]);
        }
    }

    private static void delete(File place) {
        File[] inside = place.listFiles();
        for (int each = 0; inside != null && each < inside.length; each++) {
            delete(inside[each]);
        }
        place.delete();
    }

    /** Ships the rest when the JVM ends. */
    private static final class AtEnd implements Runnable {
        private final EventLogShipper shipper;

        AtEnd(EventLogShipper shipper) {
            this.shipper = shipper;
        }

        public void run() {
            shipper.ship();
            shipper.from.delete(); // unless something could not be shipped
        }
    }
}
