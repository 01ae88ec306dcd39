package tidegate;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.util.Iterator;
import java.util.Set;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.function.BiFunction;
import org.apache.hadoop.util.ShutdownHookManager;
import org.apache.spark.sql.SparkSessionExtensions;
import org.apache.spark.sql.SparkSessionExtensionsProvider;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.streaming.WriteToStreamStatement;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import scala.Option;
import scala.runtime.AbstractFunction1;
import scala.runtime.BoxedUnit;

/**
 * Runs a main class in the driver's JVM, and asks the launcher before each of its queries starts.
 *
 * Spark gives every session the extensions of all `SparkSessionExtensionsProvider`s that it finds, whatever the
 * program configures. This one adds a rule to the analyzer. Starting a query analyzes a `WriteToStreamStatement`,
 * before anything is written to the checkpoint: the rule hands it to the launcher, which may refuse the start or choose
 * a place for the checkpoint. A launcher that does not answer has refused.
 *
 * The launcher compiles this file in the driver with Janino, which Spark brings along for its own generated code. So
 * there are no lambdas in it and no type arguments, and it names only what Spark 4.0 to 4.2 have.
 */
public final class Gate extends AbstractFunction1 implements SparkSessionExtensionsProvider {
    private static final int BEFORE_SPARKS_OWN_HOOKS = 100;
    private static final long LONGEST_STOP_SECONDS = 3600;

    private static final Semaphore EXIT = new Semaphore(1);
    private static volatile BiFunction launcher;

    /** Ask `launcher` before each start. It takes session and statement; it returns a checkpoint location or null. */
    public static void open(BiFunction launcher) {
        Gate.launcher = launcher;
        ShutdownHookManager.get().addShutdownHook(
            new ExitHook(), BEFORE_SPARKS_OWN_HOOKS, LONGEST_STOP_SECONDS, TimeUnit.SECONDS);
    }

    /** Keep the JVM until `release`, even if the program calls `System.exit`. */
    public static void hold() {
        EXIT.acquireUninterruptibly();
    }

    public static void release() {
        EXIT.release();
    }

    /** Run a main class until it and the threads that it left behind have ended; throw what it throws. */
    public static void run(String mainClass, String[] arguments) throws Throwable {
        ClassLoader loader = Gate.class.getClassLoader();
        Method main = mainOf(mainClass, loader);
        Set others = Thread.getAllStackTraces().keySet();
        Program program = new Program(main, arguments);
        Thread thread = new Thread(program, "main");
        thread.setDaemon(false); // the program's own threads inherit this, as they do without Tidegate
        thread.setContextClassLoader(loader);
        thread.start();
        thread.join();
        if (program.failure != null) {
            throw program.failure;
        }
        for (Thread left = leftBehind(others); left != null; left = leftBehind(others)) {
            left.join();
        }
    }

    private static Method mainOf(String mainClass, ClassLoader loader) throws Exception {
        Method main;
        try {
            main = Class.forName(mainClass, false, loader).getMethod("main", new Class[] {String[].class});
        } catch (ClassNotFoundException missing) {
            throw new ClassNotFoundException(
                "application.main_class " + mainClass + " is neither in the job's jar nor in application.jars");
        } catch (NoSuchMethodException missing) {
            throw new NoSuchMethodException("application.main_class " + mainClass + " has no public main(String[])");
        }
        if (!Modifier.isStatic(main.getModifiers())) {
            throw new NoSuchMethodException("application.main_class " + mainClass + ": its main is not static");
        }
        return main;
    }

    private static Thread leftBehind(Set others) {
        for (Iterator all = Thread.getAllStackTraces().keySet().iterator(); all.hasNext();) {
            Thread thread = (Thread) all.next();
            if (!thread.isDaemon() && !others.contains(thread)) {
                return thread;
            }
        }
        return null;
    }

    public Object apply(Object extensions) {
        ((SparkSessionExtensions) extensions).injectHintResolutionRule(new RuleOfSession());
        return BoxedUnit.UNIT;
    }

    /** Makes the rule of each session. */
    public static final class RuleOfSession extends AbstractFunction1 {
        public Object apply(Object session) {
            return new StartRule(session);
        }
    }

    /** Asks the launcher. It is called again after it has changed a statement. */
    public static final class StartRule extends Rule {
        private final Object session;

        public StartRule(Object session) {
            this.session = session;
        }

        public TreeNode apply(TreeNode plan) {
            if (!(plan instanceof WriteToStreamStatement)) {
                return plan;
            }
            Object location;
            try {
                location = launcher.apply(session, plan);
            } catch (RuntimeException refused) {
                // no Exception: a program that catches all of them must not go on as if it had a query
                throw new Error("Tidegate does not let this query start", refused);
            }
            return location == null ? plan : withCheckpoint((WriteToStreamStatement) plan, location);
        }

        private static TreeNode withCheckpoint(WriteToStreamStatement statement, Object location) {
            Object[] parts = new Object[statement.productArity()];
            for (int number = 0; number < parts.length; number++) {
                boolean place = statement.productElementName(number).equals("userSpecifiedCheckpointLocation");
                parts[number] = place ? Option.apply(location) : statement.productElement(number);
            }
            return statement.makeCopy(parts);
        }
    }

    private static final class Program implements Runnable {
        private final Method main;
        private final String[] arguments;
        private Throwable failure;

        Program(Method main, String[] arguments) {
            this.main = main;
            this.arguments = arguments;
        }

        public void run() {
            try {
                main.invoke(null, new Object[] {arguments});
            } catch (InvocationTargetException thrown) {
                failure = thrown.getCause();
            } catch (Throwable thrown) {
                failure = thrown;
            }
        }
    }

    private static final class ExitHook implements Runnable {
        public void run() {
            EXIT.acquireUninterruptibly();
        }
    }
}
